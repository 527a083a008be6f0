"""Which column is what: names of any data set in, the roles prompt, answer, id, system and demonstration out.

Example:
    >>> choose(["problem", "solution", "level"], {}).said()
    'columns: prompt = problem, answer = solution; kept beside them: level'
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from policyloop.errors import BadInput
from policyloop.tasks.reading import Record, kind, literal, plain
from policyloop.types import Message, Role

# In order of preference; names are compared without case, blanks, `_` and `-`.
KNOWN: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "problem", "messages", "conversations", "instruction", "query", "input", "task", "text"),
    "answer": (
        *("answer", "final_answer", "gold", "gold_answer", "ground_truth", "reward_model.ground_truth", "target", "label"),
        *("expected", "expected_answer", "reference", "solution", "output", "response", "completion", "chosen"),
    ),
    "id": ("id", "uid", "uuid", "question_id", "prompt_id"),
    "system": ("system", "system_prompt"),
    "demonstration": ("demonstration",),
}
SPEAKERS = {"human": "user", "gpt": "assistant", "model": "assistant", "function": "tool"}


@dataclass(frozen=True)
class Columns:
    """role -> column (dots reach inside objects). `others` become prompt.meta; `passed` are known names that were not taken."""

    roles: Mapping[str, str]
    others: tuple[str, ...] = ()
    passed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def said(self) -> str:
        """The choice in one sentence."""
        chosen = ", ".join(f"{role} = {name}" for role, name in self.roles.items())
        kept = f"; kept beside them: {', '.join(self.others)}" if self.others else ""
        also = "".join(f"; {role} could also be {' or '.join(names)} (data.columns)" for role, names in self.passed.items())
        return f"columns: {chosen}{kept}{also}"

    def get(self, record: Record, role: str) -> Any:
        """The value in that role, None where the role or the value is missing."""
        name = self.roles.get(role)
        return None if name is None else _reach(record.values, name)

    def scalar(self, record: Record, role: str) -> str | None:
        """The value in that role as the text of the file."""
        value = self.get(record, role)
        try:
            return literal(value)
        except ValueError:
            raise BadInput(
                f"{record.place}: the {role} ({self.roles[role]}) is a {kind(value)}",
                "text or a number",
                f"{record.place} or data.columns",
            ) from None

    def question(self, record: Record) -> str | tuple[Message, ...]:
        """The prompt of a row: text, or messages. Empty ones are refused."""
        value, name = self.get(record, "prompt"), self.roles["prompt"]
        if isinstance(value, list | tuple):
            return as_messages(value, record.place, name)
        text = self.scalar(record, "prompt") or ""
        if not text.strip():
            raise BadInput(
                f"{record.place}: the prompt ({name}) is {'missing' if value is None else 'empty'}", "a question", record.place
            )
        # Alpaca's form: an instruction and, in some rows, the input it is about.
        about = record.values.get("input") if name == "instruction" else None
        return f"{text}\n\n{about}" if about else text

    def meta(self, record: Record) -> dict[str, Any]:
        """All other columns, numbers as numbers."""
        return {name: plain(record.values[name]) for name in self.others if name in record.values}


def choose(
    names: Iterable[str],
    given: Mapping[str, str | None],
    where: str = "the data",
    known: Mapping[str, tuple[str, ...]] = KNOWN,
    needed: Sequence[str] = ("prompt",),
) -> Columns:
    """Roles for these column names (`names_of`): what `given` says, else the first known name."""
    names = list(dict.fromkeys(names))
    _check_given(names, given, where, known)
    roles = {role: name for role, name in given.items() if name is not None}
    passed: dict[str, tuple[str, ...]] = {}
    by_spelling = {_spelling(name): name for name in reversed(names)}
    for role in [r for r in known if r not in given]:
        found = [by_spelling[s] for s in map(_spelling, known[role]) if s in by_spelling]
        free = [name for name in found if name not in roles.values()]
        if free:
            roles[role] = free[0]
        if free[1:]:
            passed[role] = tuple(free[1:])
    for role in needed:
        if role not in roles:
            shown = ", ".join(names) or "none"
            raise BadInput(f"{where}: no column is known as the {role}", f"data.columns.{role} = one of {shown}", "data.columns")
    gone = {name for role, name in roles.items() if role != "id"}
    others = tuple(
        n for n in names if n not in gone and "." not in n and not (n == "input" and roles.get("prompt") == "instruction")
    )
    passed = {role: left for role, ns in passed.items() if (left := tuple(n for n in ns if n in others))}
    return Columns({role: roles[role] for role in known if role in roles}, others, passed)


def _check_given(names: list[str], given: Mapping[str, str | None], where: str, known: Mapping[str, tuple[str, ...]]) -> None:
    for role, name in given.items():
        if role not in known:
            raise BadInput(f"data.columns has a role {role!r}", ", ".join(known), "data.columns")
        if name is not None and name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadInput(f"{where} has no column {name!r}{hint}", ", ".join(names), f"data.columns.{role}")


def names_of(records: Iterable[Record]) -> list[str]:
    """All column names of the rows, with one level of objects as dotted names, in order of appearance."""
    found: dict[str, None] = {}
    for record in records:
        for name, value in record.values.items():
            found.setdefault(name)
            if isinstance(value, Mapping):
                found.update(dict.fromkeys(f"{name}.{inner}" for inner in value))
    return list(found)


def _spelling(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()


def _reach(values: Mapping[str, Any], name: str) -> Any:
    if name in values or "." not in name:
        return values.get(name)
    outer, inner = name.split(".", 1)
    found = values.get(outer)
    return _reach(found, inner) if isinstance(found, Mapping) else None


def as_messages(items: list[Any] | tuple[Any, ...], place: str, name: str) -> tuple[Message, ...]:
    if not items:
        raise BadInput(f"{place}: the prompt ({name}) is an empty list", "at least one message", place)
    return tuple(_message(item, f"{place}: message {i} of {name}", place) for i, item in enumerate(items, 1))


def _message(item: Any, what: str, place: str) -> Message:
    """{"role", "content"} or ShareGPT's {"from", "value"}; content as text or as text parts."""
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping):
        raise BadInput(f"{what} is a {kind(item)}", '{"role": ..., "content": ...}', place)
    role = item.get("role", item.get("from"))
    role = SPEAKERS.get(role, role) if isinstance(role, str) else role
    content = item.get("content", item.get("value"))
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if role not in get_args(Role):
        raise BadInput(f"{what} has the role {role!r}", ", ".join(get_args(Role)), place)
    if not isinstance(content, str):
        raise BadInput(f"{what} has no text content", "text (images and sound are not supported)", place)
    return Message(cast(Role, role), str(content))
