"""`policyloop demo`: the main job end to end. Measure the untouched model, train GRPO, train GFPO from the same start, compare, report; then the
rest of the circle (`circle.py`): the better run is gated, stored, served, asked and told what was right.

`--tiny` does the same on the tiny model: no download, a supervised start first.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Any

import typer

from policyloop.cli.circle import Clock, around

TEST_SEED = 20_261_130  # of the held-out texts of the demo's comparison; nothing was tuned on it


def demo(
    folder: Annotated[Path, typer.Option("--run", help="Where the runs go.")] = Path("runs"),
    tiny: Annotated[bool, typer.Option("--tiny", help="The tiny model: no download, a supervised start first.")] = False,
    prompts: Annotated[int, typer.Option("--prompts", help="Held-out problems of the comparison.")] = 200,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Training steps of each run (default: 12, tiny: the recipe's).")
    ] = None,
) -> None:
    """The whole circle on a real model: measure, train GRPO and GFPO, compare, report; gate, store, serve, ask, feed back."""
    from policyloop.cli.show import RECIPES

    clock = Clock()
    steps = steps or (None if tiny else 12)
    names = ("tiny-grpo", "tiny-gfpo") if tiny else ("word-problems-grpo", "word-problems-gfpo")
    start = _supervised(RECIPES, folder, clock) if tiny else None
    recipes = {name: _recipe(RECIPES / f"{name}.yaml", start, steps) for name in names}
    first, runs = recipes[names[0]], {name: folder / f"demo-{name}" for name in names}
    limits = (64,) if tiny else (128, first.rollout.max_new_tokens)
    with clock.stage(f"the untouched model, {prompts} held-out problems that no training text asks"):
        before = _evaluations(first.model.base_model_path, first, prompts, limits)
    after = {}
    for name, recipe in recipes.items():
        with clock.stage(name):
            policy = _train(recipe, runs[name], None if name == names[0] else runs[names[0]])
            after[name] = _evaluations(policy, recipe, prompts, limits)
    with clock.stage("comparison"):
        _compare(before, after, limits)
        _report(list(runs.values()), folder)
    better = max(names, key=lambda name: _own_figure(runs[name]))
    sides = before[limits[0]], after[better][limits[0]]
    around(clock, folder, recipes[better], runs[better], *sides, name="demo-tiny" if tiny else "demo", seed=TEST_SEED)


def _recipe(path: Path, start: Path | None, steps: int | None) -> Any:
    """The demo's recipe. With `steps` given it is evaluated twice, before and after: the comparison on other problems follows anyway."""
    from policyloop.recipe import load

    overrides = [f"training.steps={steps}", f"evaluation.every={steps}"] if steps else []
    return load(path, [*overrides, *([f"model.base_model_path={start}"] if start else [])])


def _supervised(recipes: Path, folder: Path, clock: Clock) -> Path:
    """The tiny model's supervised start: its policy folder."""
    from policyloop.recipe import load
    from policyloop.run import start

    with clock.stage("a supervised start for the tiny model"):
        run = start(load(recipes / "tiny-sft.yaml"), folder / "demo-tiny-sft", resume="auto", say=_sparse)
        run.close()
        return run.policy_path


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


def _train(recipe: Any, path: Path, like: Path | None) -> str:
    """Its policy as a MODEL. The second run starts where the first one did, so what that one measured before its first step holds for it."""
    from policyloop.run import start

    run = start(recipe, path, resume="auto", like=like)
    policy = str(run.policy_path)
    run.close()
    del run
    gc.collect()  # model, optimizer and engine hold each other: the next ones would come on top of them
    return policy


def _compare(before: dict[int, Any], after: dict[str, dict[int, Any]], limits: tuple[int, ...]) -> None:
    """Against the untouched model at the generous limit first: answering in one short line is part of any gain at the tight one."""
    from policyloop.evaluation.compare import compare

    for limit in limits:
        for name, found in after.items():
            print(f"\n{name} against the untouched model, limit {limit} tokens, same problems")
            print("\n".join(compare(before[limit], found[limit]).lines()))
    (first, one), (second, other) = after.items()
    print(f"\n{second} against {first}")
    print("\n".join(compare(one[limits[0]], other[limits[0]]).lines()))


def _report(runs: list[Path], folder: Path) -> None:
    from policyloop.evaluation.report import write_report

    print(f"\nreport: {write_report(runs, folder / 'demo-report.html')}", flush=True)


def _own_figure(run: Path) -> float:
    """By what a run is chosen: its own held-out figure, never the problems of the comparison, which would flatter the chosen one."""
    from policyloop.training.folder import RunFolder

    figures = [row.get("eval/accuracy") for row in RunFolder(run).rows("events.jsonl") if row["kind"] == "evaluation"]
    return figures[-1] or 0.0 if figures else 0.0
