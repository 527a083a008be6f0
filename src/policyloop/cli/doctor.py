"""`policyloop doctor [RUN|env|net]`: what is wrong, in words, each line with its fix."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from policyloop.errors import Exit, Problem

if TYPE_CHECKING:
    from policyloop.doctor import Check


def doctor(
    what: Annotated[str | None, typer.Argument(help="A run folder, env or net; nothing = env and net.")] = None,
    recipe: Annotated[Path | None, typer.Option("--recipe", help="Also look whether this recipe can run here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list instead of lines.")] = False,
) -> int:
    """Exit code 0: nothing failed; 1: something did."""
    from policyloop.doctor import failed

    checks = _checks(what, recipe)
    if as_json:
        print(json.dumps([asdict(c) for c in checks], ensure_ascii=False, indent=1))
    else:
        print("\n".join(c.line() for c in checks))
    return Exit.FAILED if failed(checks) else Exit.DONE


def _checks(what: str | None, recipe: Path | None) -> list[Check]:
    from policyloop.doctor.environment import environment, network

    about = [] if recipe is None else of_recipe(recipe)
    if what is None:
        return [*environment(), *network(), *about]
    if what in ("env", "net"):
        return [*(environment() if what == "env" else network()), *about]
    from policyloop.doctor.run import diagnose
    from policyloop.evaluation.report_data import read_run

    path = Path(what.removeprefix("run://"))
    named = Path("runs") / path
    return [*diagnose(read_run(named if named.exists() and not path.exists() else path)), *about]


def of_recipe(path: Path) -> list[Check]:
    """Does it load, is its data there, does its plan hold, what does it warn of."""
    from policyloop.doctor import Check
    from policyloop.recipe import load, memory, plan
    from policyloop.tasks import load_task

    try:
        recipe = load(path)
        task = load_task(recipe.data, recipe.training.seed)
        planned = plan(recipe, len(task.train()))
    except Problem as problem:
        return [
            Check("recipe", "fail", problem.given, f"{problem.allowed} ({problem.where})" if problem.where else problem.allowed)
        ]
    held_out = len(task.held_out(recipe.evaluation.seed))
    found = [
        Check("recipe", "ok", f"{path}: {planned.prompts} training prompts, {held_out} held out, {planned.steps} steps"),
        *(Check("recipe", "warn", text) for text in planned.warnings),
        *(Check("data", "note", text) for text in task.notes),
        Check("memory of the run", "note", memory(recipe, planned)),
    ]
    if recipe.evaluation.every and held_out < 30:
        found.append(Check("held-out", "warn", f"{held_out} prompts decide nothing", "raise data.held_out_share"))
    return found
