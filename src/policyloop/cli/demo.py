"""`policyloop demo`: the main job end to end. Measure the untouched model, train GRPO, train GFPO from the same start, compare, report, ask.

`--tiny` does the same on the tiny model: no download, a supervised start first.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

TEST_SEED = 20_261_130  # of the held-out texts of the demo's comparison; nothing was tuned on it


def demo(
    folder: Annotated[Path, typer.Option("--run", help="Where the runs go.")] = Path("runs"),
    tiny: Annotated[bool, typer.Option("--tiny", help="The tiny model: no download, about two minutes.")] = False,
    prompts: Annotated[int, typer.Option("--prompts", help="Held-out problems of the comparison.")] = 200,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Training steps of each run (default: 12, tiny: the recipe's).")
    ] = None,
) -> None:
    """The main job on a real model: measure, train GRPO and GFPO, compare, report, ask."""
    from policyloop.cli.show import RECIPES

    began = time.monotonic()
    steps = steps or (None if tiny else 12)
    names = ("tiny-grpo", "tiny-gfpo") if tiny else ("word-problems-grpo", "word-problems-gfpo")
    start = _supervised(RECIPES, folder) if tiny else None
    recipes = {name: _recipe(RECIPES / f"{name}.yaml", start, steps) for name in names}
    first = recipes[names[0]]
    base = first.model.base_model_path
    limits = (64,) if tiny else (128, first.rollout.max_new_tokens)
    print(f"\n== the untouched model, {prompts} held-out problems that no training text asks ==")
    before = _evaluations(base, first, prompts, limits)
    after = {name: _train(name, recipe, folder, prompts, limits) for name, recipe in recipes.items()}
    _compare(before, after, limits, tiny)
    _report_and_ask([folder / f"demo-{n}" for n in names], recipes[names[1]], tiny)
    print(f"\nthe whole demo took {(time.monotonic() - began) / 60:.1f} minutes")


def _recipe(path: Path, start: Path | None, steps: int | None) -> Any:
    from policyloop.recipe import load

    overrides = [f"training.steps={steps}"] if steps else []
    return load(path, [*overrides, *([f"model.base_model_path={start}"] if start else [])])


def _supervised(recipes: Path, folder: Path) -> Path:
    """The tiny model's supervised start: its policy folder."""
    from policyloop.recipe import load
    from policyloop.run import start

    print("== a supervised start for the tiny model ==")
    return start(load(recipes / "tiny-sft.yaml"), folder / "demo-tiny-sft", resume="auto", say=_sparse).policy_path


def _sparse(line: str) -> None:
    """Of a long run, every fiftieth step is enough."""
    number = line.removeprefix("step ").partition("/")[0]
    if not line.startswith("step ") or int(number) % 50 == 0:
        print(line, flush=True)


def _evaluations(model: str, recipe: Any, prompts: int, limits: tuple[int, ...]) -> dict[int, Any]:
    """One greedy evaluation at the most generous limit; tighter limits are read off it."""
    import dataclasses

    from policyloop.cli.evaluate import measure

    settings = dataclasses.replace(recipe.evaluation, prompts=prompts, seed=TEST_SEED)
    found = measure(model, dataclasses.replace(recipe, evaluation=settings), max(limits))
    by_limit = {limit: found.at_limit(limit) if limit < max(limits) else found for limit in limits}
    for limit, result in by_limit.items():
        print(f"{found.version}, limit {limit} tokens: {result.sentence()}", flush=True)
    return by_limit


def _train(name: str, recipe: Any, folder: Path, prompts: int, limits: tuple[int, ...]) -> dict[int, Any]:
    from policyloop.run import start

    print(f"\n== {name} ==", flush=True)
    run = start(recipe, folder / f"demo-{name}", resume="auto")
    return _evaluations(str(run.policy_path), recipe, prompts, limits)


def _compare(before: dict[int, Any], after: dict[str, dict[int, Any]], limits: tuple[int, ...], tiny: bool) -> None:
    """Against the untouched model at the generous limit first: answering in one short line is part of any gain at the tight one."""
    from policyloop.evaluation.compare import compare

    for limit in limits:
        for name, found in after.items():
            print(f"\n== {name} against the untouched model, limit {limit} tokens, same problems ==")
            print("\n".join(compare(before[limit], found[limit]).lines()))
    (first, one), (second, other) = after.items()
    print(f"\n== {second} against {first} ==")
    print("\n".join(compare(one[limits[0]], other[limits[0]]).lines()))


def _report_and_ask(runs: list[Path], recipe: Any, tiny: bool) -> None:
    from policyloop.engine import Request
    from policyloop.evaluation.model import open_model
    from policyloop.evaluation.report import write_report
    from policyloop.tasks import load_task
    from policyloop.types import SamplingParams

    print(f"\nreport: {write_report(runs, runs[0].parent / 'demo-report.html')}")
    task = load_task(recipe.data, recipe.training.seed)
    question = task.held_out(TEST_SEED)[0]
    model = open_model(str(runs[-1]), template=recipe.model.template)
    params = SamplingParams(max_new_tokens=64, temperature=0.0)
    (answer,) = model.engine.run([Request("demo", model.renderer.prompt_ids(question), params)])
    shown = question.text or "\n".join(m.content for m in question.messages or ())
    print(f"\nasked   {shown!r}\nanswer  {answer.text.strip()!r} (right: {question.target})")
