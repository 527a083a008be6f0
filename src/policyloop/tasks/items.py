"""Questions with their answers, before framing: records in, checked `Item`s out, and the cut into training and held-out items.

Example:
    >>> item = items_of([Record({"question": "2+3?", "answer": NumberText("5")}, "a.jsonl line 1")], {})[0][0]
    >>> item.question, item.answer, item.place
    ('2+3?', '5', 'a.jsonl line 1')
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from policyloop.errors import BadInput
from policyloop.tasks.columns import Columns, choose, names_of
from policyloop.tasks.framing import Framing
from policyloop.tasks.overlap import normalise
from policyloop.tasks.reading import OnFault, Record, stop
from policyloop.types import Message, Prompt

Question = str | tuple[Message, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """One row: question as text or messages, answer as the text of the file, `system` and `demonstration` if it has its own."""

    question: Question
    answer: str | None
    place: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    demonstration: str | None = None

    @property
    def spoken(self) -> str:
        """The question's words: what splits and overlap checks compare."""
        return (
            self.question if isinstance(self.question, str) else "\n".join(m.content for m in self.question if m.role != "system")
        )

    def prompt(self, task: str, framing: Framing) -> Prompt:
        """As the model is asked."""
        meta = dict(self.meta) if self.demonstration is None else {**self.meta, "demonstration": self.demonstration}
        return Prompt.make(task, framing.content(self.question, self.meta, self.system), self.answer, meta)


def items_of(
    records: Sequence[Record], columns: Mapping[str, str | None], where: str = "the data", on_fault: OnFault = stop
) -> tuple[list[Item], Columns]:
    """Items of all sound rows. Faults: an empty prompt, an answer that is a list, text and messages mixed, an id given twice."""
    chosen = choose(names_of(records), columns, where)
    items: list[Item] = []
    ids: dict[str, str] = {}
    for record in records:
        try:
            item = _item(record, chosen)
            if items and isinstance(item.question, str) != isinstance(items[0].question, str):
                kinds = ("text", "a message list") if isinstance(item.question, str) else ("a message list", "text")
                raise BadInput(f"{record.place}: the prompt is {kinds[0]}", f"{kinds[1]}, as in {items[0].place}", record.place)
            key = chosen.scalar(record, "id")
            if key is not None and (first := ids.setdefault(key, record.place)) != record.place:
                raise BadInput(
                    f"{record.place}: the id {key!r} is also in {first}", "different ids (or data.columns.id: null)", record.place
                )
        except BadInput as fault:
            on_fault(fault)
        else:
            items.append(item)
    return items, chosen


def _item(record: Record, columns: Columns) -> Item:
    question = columns.question(record)
    answer, demonstration = columns.scalar(record, "answer"), columns.scalar(record, "demonstration")
    if isinstance(question, tuple) and question[-1].role == "assistant":
        # A conversation to imitate: its last turn is the answer, everything before it the prompt.
        question, answer = question[:-1], question[-1].content if answer is None else answer
    if not question or (isinstance(question, tuple) and question[-1].role not in ("user", "tool")):
        raise BadInput(
            f"{record.place}: the messages do not end with a question", "a last message from user or tool", record.place
        )
    return Item(question, answer, record.place, columns.meta(record), columns.scalar(record, "system"), demonstration)


# --- which side of the cut --------------------------------------------------------------------------------------------------


def unit(key: str) -> float:
    """A number in [0, 1) that depends on `key` alone: the same in every run, process and release."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") / 2**64


def cut(items: Sequence[Item], share: float) -> tuple[list[Item], list[Item]]:
    """(training, held out) by the hash of the normalised question: equal questions stay together, new rows move no old one."""
    held = {normalise(i.spoken) for i in items}
    held = {q for q in held if unit(q) < share} or (set(sorted(held, key=unit)[:1]) if share > 0 else set())
    train = [i for i in items if normalise(i.spoken) not in held]
    if not train:
        raise BadInput(
            f"{len(items)} rows with {len(held)} different questions leave none for training beside the held-out ones",
            "more rows, or data.eval with held-out rows of its own",
            "data.held_out_share",
        )
    return train, [i for i in items if normalise(i.spoken) in held]


def shuffled(things: Sequence[T], seed: int, key: Callable[[T], str]) -> list[T]:
    """A fixed set in an order drawn from `seed`, whatever order it came in: its first n are a fair sample."""
    return sorted(things, key=lambda thing: unit(f"{seed}/{key(thing)}"))
