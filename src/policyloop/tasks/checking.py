"""Look before training: every faulty row of the files, and what is worth knowing about a task's prompts.

In: settings, or a loaded task. Out: faults as `BadInput`s with file and line; findings as sentences.

Example:
    >>> [str(f) for f in faults(DataSettings(path="train.jsonl"))]
    ['train.jsonl line 2 is not JSON (Unterminated string ...): allowed is one JSON object per line (change train.jsonl line 2)']
"""

from __future__ import annotations

from collections.abc import Sequence

from policyloop.errors import BadInput, Problem
from policyloop.tasks import DataSettings, Task
from policyloop.tasks.files import exists, is_folder
from policyloop.tasks.grading import readable
from policyloop.tasks.items import Item, items_of
from policyloop.tasks.jsonl import JsonlTask
from policyloop.tasks.overlap import find_overlap, normalise
from policyloop.tasks.preference import pairs_of
from policyloop.tasks.reading import read_split, split_files
from policyloop.types import Prompt

SHOWN = 5


def faults(settings: DataSettings) -> list[Problem]:
    """All faulty rows of the files that `settings` name, not only the first. None where there are no local files."""
    found: list[Problem] = []
    read_rows = pairs_of if settings.task == "preference" else items_of
    for uri, split in sources(settings):
        try:
            read_rows(read_split(uri, split, found.append), settings.columns, uri, found.append)
        except Problem as problem:
            if not found:
                found.append(problem)
    return found


def sources(settings: DataSettings) -> list[tuple[str, str]]:
    """(file or folder, split) of the local files that `settings` name."""
    named: list[tuple[str, str]] = []
    if settings.path is not None and (settings.task == "jsonl" or exists(settings.path)):
        named.append((settings.path, "train"))
        if settings.eval is None and is_folder(settings.path) and split_files(settings.path, "test", required=False):
            named.append((settings.path, "test"))
    if settings.eval is not None:
        named.append((settings.eval, "test"))
    return named


def findings(task: Task, near: float = 0.7) -> list[str]:
    """Sizes, what loading said, repeated questions, overlap of training and held-out questions, answers nobody can judge."""
    train, held = task.train(), task.held_out(0)
    lines = [f"task {task.name}: {len(train):,} training prompts, {len(held):,} held-out prompts", *task.notes]
    repeated = len(train) - len({asked(p) for p in train})
    lines.append(f"repeated training questions: {repeated:,}")
    if isinstance(task, JsonlTask):
        lines += overlap_lines(task.train_items, task.held_out_items, near)
    else:
        shared = len({asked(p) for p in train} & {asked(p) for p in held})
        lines.append(f"overlap: {shared} held-out questions are also training questions")
    return lines + answer_lines([*train, *held])


def asked(prompt: Prompt) -> str:
    """The words that a prompt ends with, normalised."""
    return normalise(prompt.messages[-1].content if prompt.messages else prompt.text or "")


def overlap_lines(train: Sequence[Item], held: Sequence[Item], near: float) -> list[str]:
    """How many held-out questions are copies or near copies of training questions, the closest ones with file and line."""
    found = find_overlap([i.spoken for i in train], [i.spoken for i in held], near)
    lines = [
        f"overlap: {len(found.exact)} exact, {len(found.near)} near (similarity {near} and more) of {len(held):,} held-out questions"
    ]
    lines += [f"  exact: {train[i].place} = {held[j].place}" for i, j in found.exact[:SHOWN]]
    closest = sorted(found.near, key=lambda pair: -pair[2])[:SHOWN]
    return lines + [f"  {similarity:.2f}: {train[i].place} ~ {held[j].place}" for i, j, similarity in closest]


def answer_lines(prompts: Sequence[Prompt]) -> list[str]:
    """How many answers the mathematical grader can judge, and the first ones that it cannot."""
    golds = [p.target for p in prompts if p.target is not None]
    if not golds:
        return ["answers: none, so nothing can be graded"]
    odd = [gold for gold, good in zip(golds, readable(golds), strict=True) if not good]
    lines = [f"answers: {len(golds) - len(odd):,} of {len(prompts):,} can be judged by value"]
    return lines + [f"  not: {gold[:60]!r}" for gold in dict.fromkeys(odd[: 4 * SHOWN])][: SHOWN + 1]


def refuse(problems: Sequence[Problem], where: str) -> None:
    """The end of a check that found faults: the only one, or how many there are."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise BadInput(f"{where}: {len(problems)} faulty rows", "rows without faults", where)
