"""Tasks: where prompts come from and what counts as right. Protocol, settings and table live here (no torch).

In: `DataSettings` (the `data` table of a recipe). Out: a `Task`: training prompts, held-out prompts, a verdict per completion.

Example:
    >>> task = load_task(DataSettings(task="word_problems"), seed=0)
    >>> task.train()[0].target, task.held_out(seed=1)[0].meta["cluster"]
    ('12', '*:3,4')
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Protocol

from policyloop.errors import BadInput, NotFound
from policyloop.types import Completion, Prompt, settings


class Task(Protocol):
    """Prompts, verifier and evaluation in one.

    `held_out(seed)`: evaluation prompts, never trained on. Generated tasks write fresh texts for every seed; tasks with a fixed
    set give the whole set in an order drawn from the seed, so that the first n are a fair sample. `grade`: True right, False
    wrong, None when the gold cannot be judged. `notes`: what loading chose or found, one sentence each, to be said once.
    """

    @property
    def name(self) -> str: ...

    @property
    def correct_needs_stop(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def train(self) -> Sequence[Prompt]: ...

    def held_out(self, seed: int = 0) -> Sequence[Prompt]: ...

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None: ...


@settings
class DataSettings:
    """The data of a run: which task, and how its rows become prompts. The same tree serves training, evaluation and serving.

    task: a row of TASKS, `package.module:creator` (called with settings and seed), or a data file (short for `jsonl`).
    path: file or folder of training rows (`jsonl`, `preference`, `gsm8k`). eval: file or folder of held-out rows; else a share is cut off.
    options: the task's own options (docs/data.md lists them per task).
    columns: role -> column, for prompt, answer, id, system, demonstration (pairs: chosen, rejected, score_chosen, score_rejected); dots reach inside (`reward.gold`); null = none.
    held_out_share: share cut off by prompt hash where there is no test set; null = the task's own (0.1 for files).
    system: system message of every prompt. prompt_template: text around the question, `{prompt}` and other columns in braces.
    answer_format: sentence after the question that asks for the form of the answer; null = the task's own, "" = none.
    prompt_as: `chat` makes a question a user message for the chat template, `text` leaves it as it is. Message lists are chat.
    grader: `math` compares values, `text` compares words, `auto` = the task's own (files: math if most answers are numbers).
    correct_needs_stop: an answer cut off by the token limit is wrong; null = the task's own.
    overlap: what to do about training rows that are also held-out rows: refuse, drop (the training row) or warn.
    dataset_cache_dir: where downloaded data sets are kept; null = the user's Hugging Face cache.
    """

    task: str = "jsonl"
    path: str | None = None
    eval: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str | None] = field(default_factory=dict)
    held_out_share: float | None = None
    system: str | None = None
    prompt_template: str | None = None
    answer_format: str | None = None
    prompt_as: Literal["chat", "text"] = "chat"
    grader: Literal["auto", "math", "text"] = "auto"
    correct_needs_stop: bool | None = None
    overlap: Literal["refuse", "drop", "warn"] = "refuse"
    dataset_cache_dir: str | None = None

    def __post_init__(self) -> None:
        if self.held_out_share is not None and not 0 <= self.held_out_share < 1:
            raise BadInput(f"data.held_out_share = {self.held_out_share}", "0 up to, not including, 1", "data.held_out_share")


Creator = Callable[[DataSettings, int], Task]


def _lazy(module: str) -> Creator:
    def create(settings: DataSettings, seed: int) -> Task:
        return importlib.import_module(f"policyloop.tasks.{module}").load(settings, seed)

    return create


TASKS: dict[str, Creator] = {
    "gsm8k": _lazy("gsm8k"),
    "word_problems": _lazy("word_problems"),
    "procedural": _lazy("procedural"),
    "jsonl": _lazy("jsonl"),
    "preference": _lazy("preference"),
    "tiny_arithmetic": _lazy("tiny_arithmetic"),
    "feedback": _lazy("feedback"),
}

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")


def load_task(settings: DataSettings, seed: int) -> Task:
    """The task that `settings` name. `seed` draws the training texts of generated tasks; it never moves the held-out border."""
    name = settings.task.strip()
    if name.removesuffix(".gz").endswith(DATA_SUFFIXES):
        return TASKS["jsonl"](replace(settings, task="jsonl", path=name), seed)
    if ":" in name:
        return _imported(name)(settings, seed)
    row = name.casefold().replace("-", "_")
    if row not in TASKS:
        near = difflib.get_close_matches(row, TASKS, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotFound(
            f"task {name!r} does not exist{hint}", f"{', '.join(TASKS)}, package.module:creator or a data file", "data.task"
        )
    return TASKS[row](settings, seed)


def _imported(name: str) -> Creator:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise NotFound(f"task {name!r} cannot be imported ({error})", "package.module:creator", "data.task") from None
