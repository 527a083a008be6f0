"""Preference pairs: rows of (prompt, chosen, rejected) in the common layouts, a share of them held out by the hash of the question.

    explicit    {"prompt": text or messages, "chosen": text, message or messages, "rejected": ...}  (also question, instruction + input)
    implicit    {"chosen": [user, assistant], "rejected": [user, assistant]}: the shared turns are the prompt
    transcripts {"chosen": "\\n\\nHuman: ... \\n\\nAssistant: ...", "rejected": ...}: read as messages
    OpenAI      {"input": {"messages": [...]}, "preferred_output": [...], "non_preferred_output": [...]}

In: `data.path` (and `data.eval`). Out: a `Task` whose prompts carry `meta["chosen"]`, `meta["rejected"]`, the scores where the rows have
them, and `meta["demonstration"]` (the chosen answer), so that supervised training imitates the chosen side.

Example:
    >>> task = PreferenceTask.from_rows([{"prompt": "2+3?", "chosen": "5", "rejected": "6"}, ...], DataSettings(task="preference"))
    >>> task.train()[0].meta["rejected"]
    '6'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.columns import KNOWN, Columns, as_messages, choose, names_of
from policyloop.tasks.framing import Framing
from policyloop.tasks.items import Item, cut, shuffled
from policyloop.tasks.jsonl import separate, splits
from policyloop.tasks.reading import NumberText, OnFault, Record, kind, literal, stop
from policyloop.types import Completion, Message, Prompt

HELD_OUT_SHARE = 0.1
ROLES: dict[str, tuple[str, ...]] = {
    "prompt": (*(n for n in KNOWN["prompt"] if n not in ("input", "text")), "input.messages", "input", "context"),
    "chosen": ("chosen", "preferred_output", "preferred", "response_chosen", "chosen_response", "response_j", "win"),
    "rejected": (
        "rejected",
        "non_preferred_output",
        "dispreferred",
        "response_rejected",
        "rejected_response",
        "response_k",
        "lose",
    ),
    "score_chosen": ("score_chosen", "chosen_score", "chosen_rating"),
    "score_rejected": ("score_rejected", "rejected_score", "rejected_rating"),
    "id": KNOWN["id"],
    "system": KNOWN["system"],
}
TURN = re.compile(r"(?:\A|\n\n)(Human|Assistant): ?")


@dataclass(frozen=True)
class PreferenceTask:
    """Prompts with two answers each. `grade` is silent: a pair is compared, an answer alone is not right or wrong."""

    name: str
    framing: Framing
    notes: tuple[str, ...]
    train_items: tuple[Item, ...]
    held_out_items: tuple[Item, ...]
    correct_needs_stop: bool = False

    def train(self) -> list[Prompt]:
        return [self._prompt(item) for item in self.train_items]

    def held_out(self, seed: int = 0) -> list[Prompt]:
        """All held-out pairs, in an order drawn from the seed."""
        return shuffled([self._prompt(item) for item in self.held_out_items], seed, lambda p: f"{p.id}/{p.meta['rejected']}")

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        return None

    def _prompt(self, item: Item) -> Prompt:
        """The id hashes the chosen answer with the question, but an answer to imitate is no gold that a grader may read."""
        made = item.prompt(self.name, self.framing)
        return replace(made, target=None)

    @staticmethod
    def from_rows(
        rows: Iterable[Mapping[str, Any]], settings: DataSettings, held_out: Iterable[Mapping[str, Any]] | None = None
    ) -> PreferenceTask:
        """The task of rows that are already in memory."""
        train = [Record(row, f"row {i}") for i, row in enumerate(rows)]
        test = None if held_out is None else [Record(row, f"held-out row {i}") for i, row in enumerate(held_out)]
        return PreferenceTask.from_records(train, test, settings, "the rows")

    @staticmethod
    def from_records(
        records: Sequence[Record], held_out: Sequence[Record] | None, settings: DataSettings, where: str
    ) -> PreferenceTask:
        if not records:
            raise BadInput(f"{where}: there are no rows", "at least two", "data.path")
        items, columns = pairs_of(records, settings.columns, where)
        notes = [columns.said()]
        if held_out is None:
            train, test = cut(items, HELD_OUT_SHARE if settings.held_out_share is None else settings.held_out_share)
            notes.append(f"{len(train)} training pairs, {len(test)} held out by the hash of the question")
        else:
            test, _ = pairs_of(held_out, settings.columns, "the held-out rows")
            train, said = separate(items, test, settings.overlap)
            notes += [f"{len(train)} training pairs, {len(test)} held-out pairs", *said]
        return PreferenceTask("preference", Framing.of(settings), tuple(notes), tuple(train), tuple(test))


def load(settings: DataSettings, seed: int) -> PreferenceTask:
    """Pairs from `data.path`; held-out pairs from `data.eval`, from the folder's own test files, or cut off."""
    if settings.options:
        raise BadInput(f"data.options = {dict(settings.options)}", "no options for task preference", "data.options")
    if settings.grader != "auto":
        raise BadInput(
            f"data.grader = {settings.grader} with task preference", "auto: pairs are compared, not graded", "data.grader"
        )
    train, held_out, where = splits(settings, "(prompt, chosen, rejected) rows")
    return PreferenceTask.from_records(train, held_out, settings, where)


# --- one row ----------------------------------------------------------------------------------------------------------------


def pairs_of(
    records: Sequence[Record], columns: Mapping[str, str | None], where: str, on_fault: OnFault = stop
) -> tuple[list[Item], Columns]:
    """Items of all sound rows. Errors: BadInput with file and line for an empty or missing side, equal sides, sides of different prompts."""
    names = names_of(records)
    if {"completion", "label"} <= set(names) and not {"chosen", "rejected"} & set(names):
        allowed = "rows with both a chosen and a rejected answer"
        raise BadInput(f"{where} holds single labelled answers (completion, label), not pairs", allowed, where)
    chosen = choose(names, columns, where, known=ROLES, needed=("chosen", "rejected"))
    items: list[Item] = []
    for record in records:
        try:
            items.append(_item(record, chosen))
        except BadInput as fault:
            on_fault(fault)
    return items, chosen


def _item(record: Record, columns: Columns) -> Item:
    good, bad = _side(record, columns, "chosen"), _side(record, columns, "rejected")
    own = columns.get(record, "prompt")
    shared = _shared(good[:-1], bad[:-1], record, columns)
    if shared is not None:  # the sides bring their prompt along
        question: str | tuple[Message, ...] = shared
    elif own is None:
        said = f"{record.place}: there is no prompt, and the two sides share none"
        raise BadInput(said, "a prompt column, or chosen and rejected as messages that begin alike", record.place)
    else:
        question = columns.question(record)
    if isinstance(question, tuple) and question[-1].role not in ("user", "tool"):
        raise BadInput(
            f"{record.place}: the prompt does not end with a question", "a last message from user or tool", record.place
        )
    answers = {"chosen": good[-1].content, "rejected": bad[-1].content}
    if answers["chosen"] == answers["rejected"]:
        raise BadInput(f"{record.place}: chosen and rejected are the same text", "two different answers", record.place)
    scores = {role: value for role in ("score_chosen", "score_rejected") if (value := _score(record, columns, role)) is not None}
    meta = {**columns.meta(record), **answers, **scores}
    return Item(question, answers["chosen"], record.place, meta, columns.scalar(record, "system"), answers["chosen"])


def _side(record: Record, columns: Columns, role: str) -> tuple[Message, ...]:
    """A side as messages, the answer last: from text, a transcript, one message or a list of them."""
    value, name = columns.get(record, role), columns.roles[role]
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list | tuple):
        messages = as_messages(value, record.place, name)
    else:
        try:
            text = literal(value) or ""
        except ValueError:
            raise BadInput(f"{record.place}: {name} is a {kind(value)}", "text or messages", record.place) from None
        messages = transcript(text) or (Message("assistant", text),)
    if messages[-1].role != "assistant" or not messages[-1].content.strip():
        what = (
            "is missing" if value is None else "is empty" if messages[-1].role == "assistant" else "does not end with an answer"
        )
        raise BadInput(f"{record.place}: {name} {what}", "an answer of the assistant", record.place)
    return messages


def transcript(text: str) -> tuple[Message, ...] | None:
    """`\\n\\nHuman: ...\\n\\nAssistant: ...` as messages; None for any other text."""
    pieces = TURN.split(text)
    if len(pieces) < 5 or pieces[0].strip() or pieces[1] != "Human" or pieces[-2] != "Assistant":
        return None
    roles = {"Human": "user", "Assistant": "assistant"}
    return tuple(Message(roles[who], said.strip()) for who, said in zip(pieces[1::2], pieces[2::2], strict=True))  # type: ignore[arg-type]


def _shared(good: tuple[Message, ...], bad: tuple[Message, ...], record: Record, columns: Columns) -> tuple[Message, ...] | None:
    """The turns before the answers, which must be the same on both sides: only the last turn is compared."""
    if good != bad:
        first = next((i for i, (a, b) in enumerate(zip(good, bad, strict=False), 1) if a != b), min(len(good), len(bad)) + 1)
        where = f"{columns.roles['chosen']} and {columns.roles['rejected']} differ before the answer, from message {first} on"
        raise BadInput(f"{record.place}: {where}", "the same turns on both sides, then one answer each", record.place)
    return good or None


def _score(record: Record, columns: Columns, role: str) -> float | None:
    text = columns.scalar(record, role)
    try:
        return None if text is None else float(NumberText(text))
    except ValueError:
        raise BadInput(f"{record.place}: {columns.roles[role]} is {text!r}", "a number", record.place) from None
