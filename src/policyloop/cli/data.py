"""`policyloop data check|convert|preview`: look at data before training on it. SOURCE is a data file or folder, a recipe, or a task's name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policyloop.cli.console import printer
from policyloop.errors import BadInput
from policyloop.tasks import TASKS, DataSettings, load_task
from policyloop.types import Message, Prompt

if TYPE_CHECKING:
    from policyloop.models.template import Renderer
    from policyloop.tasks.items import Item

MOST_FAULTS, MOST_LENGTHS = 20, 1000

SourceArgument = Annotated[str, typer.Argument(help="A data file or folder, a recipe (YAML), or a task's name.")]
TaskOption = Annotated[str | None, typer.Option("--task", help="The task that reads SOURCE (default: jsonl).")]
EvalOption = Annotated[str | None, typer.Option("--eval", help="A file or folder of held-out rows.")]
ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", help="role=column, for prompt, answer, id, system, demonstration.")
]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Override one key of the recipe: a.b=c.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="A model, for token ids (default: the recipe's).")]


def check(
    source: SourceArgument,
    task: TaskOption = None,
    eval_: EvalOption = None,
    column: ColumnOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    near: Annotated[float, typer.Option("--near", help="Similarity from which two questions are near copies.")] = 0.7,
) -> None:
    """Rows, columns, duplicates, overlap, unreadable answers, token lengths. Exit codes: 0 sound, 2 faulty rows or overlap."""
    from policyloop.tasks.checking import faults, findings, refuse

    say, given = printer(), given_by(source, task, eval_, column, set_, model)
    found = faults(given.data)
    for fault in found[:MOST_FAULTS] if len(found) > 1 else ():
        say(str(fault))
    if len(found) > MOST_FAULTS:
        say(f"and {len(found) - MOST_FAULTS} more")
    refuse(found, source)
    loaded = load_task(replace(given.data, overlap="warn"), 0)
    for line in findings(loaded, near):
        say(line)
    if (renderer := given.renderer()) is not None:
        for line in length_lines(loaded.train(), renderer):
            say(line)
    if given.data.overlap == "refuse":
        load_task(given.data, 0)  # here the answer may be no


def convert(
    source: SourceArgument,
    out: Annotated[str, typer.Argument(help="The JSON Lines file to write.")],
    task: TaskOption = None,
    column: ColumnOption = None,
    split: Annotated[str, typer.Option("--split", help="train or test, where SOURCE holds both.")] = "train",
    pairs: Annotated[
        int, typer.Option("--pairs", min=0, help="SOURCE is a run (its samples): up to N pairs right/wrong per sampled prompt.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.")] = False,
) -> None:
    """Any accepted format to policyloop's JSON Lines; what is written reads back as the same rows, or nothing is written."""
    from policyloop.tasks.writing import write_items

    if pairs:
        from policyloop.tasks.pairing import write_pairs

        written, prompts = write_pairs(source, out, pairs, force)
        printer()(f"{written:,} pairs of {prompts:,} sampled prompts written to {out}")
        return
    if split not in ("train", "test"):
        raise BadInput(f"--split {split}", "train or test", "--split")
    items = rows_of(given_by(source, task, None, column, None, None).data, split)
    write_items(items, out, force)
    printer()(f"{len(items):,} rows written to {out}")


def preview(
    source: SourceArgument,
    task: TaskOption = None,
    column: ColumnOption = None,
    set_: SetOption = None,
    model: ModelOption = None,
    rows: Annotated[int, typer.Option("--rows", min=1, help="How many prompts.")] = 3,
    held_out: Annotated[bool, typer.Option("--held-out", help="Held-out prompts instead of training prompts.")] = False,
) -> None:
    """What the model is asked: rendered text, token ids, supervised tokens (between « and »), the answer as the grader reads it."""
    given = given_by(source, task, None, column, set_, model)
    loaded = load_task(given.data, 0)
    say, renderer = printer(), given.renderer()
    for number, prompt in enumerate((loaded.held_out(0) if held_out else loaded.train())[:rows], 1):
        say(f"--- {number}: prompt {prompt.id} of {prompt.task}")
        for line in preview_lines(prompt, renderer):
            say(line)


# --- what the arguments mean ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """Data settings and, where there is one, a model to count tokens with."""

    data: DataSettings
    model: str | None = None
    template: str | None = None

    def renderer(self) -> Renderer | None:
        if self.model is None:
            return None
        from policyloop.models.catalogue import resolve
        from policyloop.models.template import load_renderer

        return load_renderer(resolve(self.model), self.template)


def given_by(
    source: str, task: str | None, eval_: str | None, column: list[str] | None, set_: list[str] | None, model: str | None
) -> Given:
    if source.endswith((".yaml", ".yml")):
        from policyloop.recipe import load

        recipe = load(Path(source), set_ or [])
        return Given(recipe.data, model or recipe.model.base_model_path, recipe.model.template)
    columns: dict[str, str | None] = {}
    for pair in column or []:
        role, sign, name = pair.partition("=")
        if not sign:
            raise BadInput(f"--column {pair}", "role=column, for example prompt=frage", "--column")
        columns[role] = name or None
    if source in TASKS and not Path(source).exists():
        return Given(DataSettings(task=source), model)
    return Given(DataSettings(task=task or "jsonl", path=source, eval=eval_, columns=columns), model)


def rows_of(data: DataSettings, split: str) -> list[Item]:
    """The items of one split, as the files have them."""
    from policyloop.tasks.items import items_of
    from policyloop.tasks.jsonl import JsonlTask
    from policyloop.tasks.reading import read_split

    if data.task == "jsonl" and data.path is not None:
        return items_of(read_split(data.path, split), data.columns, data.path)[0]
    loaded = load_task(data, 0)
    if not isinstance(loaded, JsonlTask):
        raise BadInput(f"task {data.task} writes its own prompts", "a file, a folder or gsm8k", "--task")
    return list(loaded.train_items if split == "train" else loaded.held_out_items)


# --- lines ------------------------------------------------------------------------------------------------------------------


def length_lines(prompts: Sequence[Prompt], renderer: Renderer) -> list[str]:
    """Token lengths of (a sample of) the prompts, and how many do not fit the model's context."""
    from policyloop.stats import quantile

    sample = prompts[:: max(1, len(prompts) // MOST_LENGTHS)]
    lengths = [len(renderer.prompt_ids(p, max_tokens=2**31)) for p in sample]
    line = f"prompt tokens: median {quantile(lengths, 0.5):.0f}, 95 % {quantile(lengths, 0.95):.0f}, longest {max(lengths)}"
    line += f" (of {len(sample):,} prompts looked at)"
    over = sum(n >= renderer.context for n in lengths) if renderer.context else 0
    return [line, *renderer.notes, *([f"{over} of them do not fit the context of {renderer.context} tokens"] if over else [])]


def preview_lines(prompt: Prompt, renderer: Renderer | None) -> list[str]:
    lines = asked_lines(prompt)
    if renderer is not None:
        ids = renderer.prompt_ids(prompt)
        lines += [f"rendered ({len(ids)} tokens): {''.join(renderer.token_texts(ids))!r}", f"ids: {' '.join(map(str, ids))}"]
        answer = prompt.meta.get("demonstration", prompt.target)
        if answer is not None:
            all_ids, mask = renderer.demonstration(prompt, str(answer))
            pieces = [f"«{piece}»" if on else piece for piece, on in zip(renderer.token_texts(all_ids), mask, strict=True)]
            lines.append(f"supervised ({sum(mask)} of {len(mask)} tokens): {''.join(pieces[len(ids) :])!r}")
    sides = [f"{side}: {prompt.meta[side]}" for side in ("chosen", "rejected") if side in prompt.meta]
    return [*lines, *(sides or [answer_line(prompt.target)])]


def asked_lines(prompt: Prompt) -> list[str]:
    messages = [Message("user", prompt.text or "")] if prompt.messages is None else prompt.messages
    kind = "text" if prompt.messages is None else None
    return [f"{kind or m.role}: {m.content}" for m in messages]


def answer_line(gold: str | None) -> str:
    """The gold as the file has it and as the grader reads it."""
    if gold is None:
        return "answer: none"
    from policyloop.rewards.math import gold_value, grade

    value = gold_value(gold)
    read = f"the number {value.number}" if value is not None else "words" if grade(gold, gold) is None else "an expression"
    return f"answer: {gold!r}, read as {read}"
