"""Feedback: a curated set of served requests, mixed with the data the model was trained on before (replay), judged as that data is.

In: `data.options`: `set` (a version of the store's shelf `datasets`, or a folder), `store`, `replay` (share of training prompts that are
the original task's), `original` (its `data` table). Held-out prompts are the original task's, so that a round is measured like the last.

Example:
    data: {task: feedback, options: {set: feedback@3, replay: 0.5, original: {task: gsm8k, path: gsm8k}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from policyloop.config import build
from policyloop.errors import BadInput
from policyloop.store import open_store
from policyloop.tasks import DataSettings, Task, load_task
from policyloop.tasks.items import shuffled
from policyloop.types import Completion, Message, Prompt, settings


@settings
class Options:
    """set: `name@n` on the shelf `datasets`, or a folder with prompts.jsonl. store: where; null = POLICYLOOP_STORE, else `store`.
    replay: share of prompts that come from the original task. original: the `data` table of that task."""

    set: str
    store: str | None = None
    replay: float = 0.5
    original: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.replay < 1:
            raise BadInput(f"data.options.replay = {self.replay}", "0 up to, not including, 1", "data.options.replay")


@dataclass(frozen=True)
class FeedbackTask:
    original: Task
    curated: tuple[Prompt, ...]
    replayed: tuple[Prompt, ...]
    name: str = "feedback"

    @property
    def correct_needs_stop(self) -> bool:
        return self.original.correct_needs_stop

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.original.notes, f"{len(self.curated)} prompts from feedback, {len(self.replayed)} replayed")

    def train(self) -> list[Prompt]:
        return [*self.curated, *self.replayed]

    def held_out(self, seed: int = 0) -> Sequence[Prompt]:
        return self.original.held_out(seed)

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        return self.original.grade(prompt, completion)


def load(settings: DataSettings, seed: int) -> FeedbackTask:
    options = build(Options, settings.options, "data.options")
    original = load_task(build(DataSettings, options.original, "data.options.original"), seed)
    curated = tuple(prompts_of(folder_of(options)))
    share = options.replay
    wanted = round(len(curated) * share / (1 - share))
    replayed = shuffled(list(original.train()), seed, lambda p: p.id)[:wanted]
    return FeedbackTask(original, curated, tuple(replayed))


def folder_of(options: Options) -> Path:
    if Path(options.set).is_dir():
        return Path(options.set)
    store = open_store(options.store).on("datasets")
    return store.fetch(store.resolve(options.set))


def prompts_of(folder: Path) -> list[Prompt]:
    """As they were asked: no template is put around them again. Errors: BadInput for an empty set."""
    path = folder / "prompts.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    if not rows:
        raise BadInput(
            f"{path} has no prompts", "a set with answers to its questions (`policyloop collect stats`)", "data.options.set"
        )
    made = []
    for row in rows:
        asked = row["prompt"]
        content = asked if isinstance(asked, str) else [Message(m["role"], m["content"]) for m in asked]
        made.append(Prompt.make("feedback", content, row["answer"], {"requests": row["requests"], "priority": row["priority"]}))
    return made
