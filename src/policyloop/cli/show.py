"""`policyloop init` and `policyloop show`: a recipe to start from, and what a recipe means once everything is resolved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from policyloop.errors import BadInput, Conflict

_INSTALLED = Path(__file__).parent.parent / "recipes"
RECIPES = _INSTALLED if _INSTALLED.exists() else Path(__file__).parents[3] / "recipes"  # a checkout keeps them at its root


def recipe_names() -> list[str]:
    return sorted(p.stem for p in RECIPES.glob("*.yaml"))


def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("run.yaml"),
    recipe: Annotated[str, typer.Option("--recipe", help="The recipe to copy.")] = "word-problems-grpo",
) -> None:
    """Write a recipe to start from, with its comments."""
    if recipe not in recipe_names():
        raise BadInput(f"recipe {recipe}", ", ".join(recipe_names()), "--recipe")
    if path.exists():
        raise Conflict(f"{path} exists", "another file name", "PATH")
    path.write_text((RECIPES / f"{recipe}.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    print(f"wrote {path}; next: policyloop show {path} --plan, then policyloop train {path}")


def show(
    config: Annotated[Path, typer.Argument(help="A recipe (YAML).")],
    plan: Annotated[bool, typer.Option("--plan", help="Sizes, passes and warnings of the run as well.")] = False,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: a.b=c. May be repeated.")] = None,
) -> None:
    """The resolved tree: every key, every default."""
    from policyloop.recipe import load, memory, tree_of
    from policyloop.recipe import plan as foresee

    recipe = load(config, set_ or [])
    print(yaml.safe_dump(tree_of(recipe), sort_keys=False, allow_unicode=True, width=120).rstrip())
    if plan:
        from policyloop.tasks import load_task

        task = load_task(recipe.data, recipe.training.seed)
        planned = foresee(recipe, len(task.train()))
        print("\n".join(["", *planned.lines(), memory(recipe, planned), *(f"data: {note}" for note in task.notes)]))
