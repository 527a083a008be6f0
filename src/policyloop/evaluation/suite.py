"""Frozen suites: a file of prompts with a digest, so that the items a gate judges on never move silently. And: were any of them trained on?

    {"suite": "wp-v1", "n": 200, "sha256": "...", "data": {the task that judges}}      first line
    {"id": "...", "messages": [["user", "..."]], "target": "12", "meta": {...}}         one line per prompt

The digest is over the prompt lines. A changed, missing or added line is refused.

Example:
    >>> freeze(Path("wp.suite.jsonl"), "wp-v1", prompts, DataSettings(task="word_problems"))
    >>> suite = Suite.load(Path("wp.suite.jsonl"))
    >>> contamination(suite.prompts, task.train()).exact
    ()
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyloop.config import build, to_tree
from policyloop.errors import BadInput, Conflict, NotFound
from policyloop.tasks import DataSettings, Task
from policyloop.tasks.files import create_bytes
from policyloop.tasks.overlap import find_overlap, normalise
from policyloop.types import Message, Prompt

NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class Suite:
    """Prompts that stay as they are. `data`: the settings of the task that grades them."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]
    data: DataSettings

    @staticmethod
    def load(path: Path) -> Suite:
        """Errors: NotFound; BadInput for a file that is no suite; Conflict for one that was changed after it was frozen."""
        if not path.is_file():
            raise NotFound(f"no suite {path}", "a file made by `policyloop gate --task T --suite FILE`", "--suite")
        head, *lines = path.read_text(encoding="utf-8", errors="surrogatepass").splitlines()
        try:
            about = json.loads(head)
            prompts = tuple(_prompt(json.loads(line), about["suite"]) for line in lines)
            digest, data = _digest(lines), build(DataSettings, about["data"], "data")
            known, n = about["sha256"], about["n"]
        except (ValueError, KeyError, TypeError, IndexError) as problem:
            raise BadInput(f"{path} is no suite ({type(problem).__name__})", "a frozen suite", str(path)) from None
        if digest != known or len(lines) != n:
            raise Conflict(f"{path} was changed after it was frozen", f"the {n} lines with sha256 {known[:12]}…", str(path))
        return Suite(about["suite"], digest, prompts, data)


def freeze(path: Path, name: str, prompts: Sequence[Prompt], data: DataSettings) -> Suite:
    """Write a new suite. Errors: Conflict where the file exists; BadInput for no prompts or one id twice."""
    if not prompts or len({p.id for p in prompts}) != len(prompts):
        raise BadInput(f"{len(prompts)} prompts with {len({p.id for p in prompts})} ids", "prompts that differ", "the data")
    lines = [json.dumps(_row(p), ensure_ascii=False, default=str) for p in prompts]
    about = {"suite": name, "n": len(lines), "sha256": _digest(lines), "data": to_tree(data)}
    with create_bytes(str(path)) as out:
        out.write(("\n".join([json.dumps(about, ensure_ascii=False), *lines]) + "\n").encode("utf-8", "surrogatepass"))
    return Suite.load(path)


def _row(p: Prompt) -> dict[str, Any]:
    asked = {"text": p.text} if p.messages is None else {"messages": [[m.role, m.content] for m in p.messages]}
    return {"id": p.id, "task": p.task, **asked, "target": p.target, "meta": dict(p.meta)}


def _prompt(row: Mapping[str, Any], suite: str) -> Prompt:
    messages = None if "messages" not in row else tuple(Message(role, content) for role, content in row["messages"])
    return Prompt(row["id"], row.get("task", suite), messages, row.get("text"), row.get("target"), row.get("meta") or {})


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


# --- contamination ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contamination:
    """Ids of items that are also training rows: the same question (exact), or a rewording with the same numbers and answer (near)."""

    n: int
    exact: tuple[str, ...] = ()
    near: tuple[str, ...] = ()

    @property
    def ids(self) -> frozenset[str]:
        return frozenset({*self.exact, *self.near})

    def sentence(self) -> str:
        return f"{len(self.exact)} of {self.n} items are training rows, {len(self.near)} more are rewordings of one"


def contamination(items: Sequence[Prompt], train: Sequence[Prompt], near: float = 0.7, task: Task | None = None) -> Contamination:
    """By id, by normalised words, and by shared 5-grams. Templates make neighbours of questions that differ in a number, so a near copy
    counts only where the numbers and the answer agree too. The task's answer format, alike in all prompts, is left out."""
    tail = getattr(getattr(task, "framing", None), "answer_format", "") or ""
    asked, seen = ([_spoken(p, tail) for p in side] for side in (items, train))
    known = {p.id for p in train}
    found = find_overlap(seen, asked, near)
    exact = {j for _, j in found.exact} | {j for j, p in enumerate(items) if p.id in known}
    copies = {
        j
        for i, j, _ in found.near
        if j not in exact and _gold(train[i]) == _gold(items[j]) and _numbers(seen[i]) == _numbers(asked[j])
    }
    return Contamination(len(items), tuple(items[j].id for j in sorted(exact)), tuple(items[j].id for j in sorted(copies)))


def _spoken(p: Prompt, tail: str) -> str:
    text = p.text or "\n".join(m.content for m in p.messages or () if m.role != "system")
    return text.removesuffix(tail).rstrip() if tail else text


def _gold(p: Prompt) -> str:
    return normalise(p.target or "")


def _numbers(text: str) -> list[str]:
    return sorted(NUMBER.findall(text))
