"""`policyloop gate CANDIDATE STABLE`: may the candidate replace the stable version?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from policyloop.cli.evaluate import LIMIT, SET, TASK_HELP, TEMPLATE

KL_PROMPTS, KL_TOKENS = 16, 32
SIDE = Annotated[str, typer.Argument(help="MODEL (such as name@candidate), or a file saved by evaluate.")]


def gate(
    candidate: SIDE,
    stable: SIDE,
    task: Annotated[str, typer.Option("--task", help=f"{TASK_HELP} A recipe's evaluation.gate table holds the rules.")] = "",
    suite: Annotated[
        Path | None, typer.Option("--suite", help="The frozen items. A file that does not exist is frozen now, from --task.")
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", help="How many items to take or freeze; a suite is used whole.")] = 400,
    regression: Annotated[
        list[Path] | None, typer.Option("--regression", help="A suite that must not become worse. May be repeated.")
    ] = None,
    max_new_tokens: LIMIT = None,
    template: TEMPLATE = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the report as JSON.")] = None,
    set_: SET = None,
) -> int:
    """Exit code 0 SHIP, 3 HOLD, 4 INCONCLUSIVE. For a version of the store the report is kept there."""
    recipe, main, frozen = _main(task, suite, prompts, set_)
    rules = recipe.evaluation.gate
    suites = {"": main}
    for path in regression or [Path(p) for p in rules.regressions.values()]:
        suites[_name_of(path, rules)] = _suite_of(path)
    report = _judged(candidate, stable, recipe, suites, frozen, max_new_tokens, template)
    print("\n".join(report.lines()))
    if save is not None:
        report.save(save)
        print(f"saved {save}")
    if (event := _kept(candidate, report)) is not None:
        print(f"kept with {event}")
    return int(report.exit_code)


# --- items ------------------------------------------------------------------------------------------------------------------


def _main(task: str, suite: Path | None, prompts: int, set_: list[str] | None) -> tuple[Any, Any, dict[str, Any]]:
    """Recipe, (task, items), and what the report says of the suite."""
    from policyloop.cli.evaluate import BARE_LIMIT, _settings
    from policyloop.config import to_tree
    from policyloop.errors import BadInput
    from policyloop.evaluation.suite import Suite, freeze
    from policyloop.recipe import load
    from policyloop.tasks import load_task

    if not task and suite is None:
        raise BadInput("a gate without items", "--suite FILE, --task T, or both", "--suite")
    if not task:
        found = Suite.load(suite)  # type: ignore[arg-type]
        tree = {"model": {"base_model_path": "tiny"}, "data": to_tree(found.data), "rollout": {"max_new_tokens": BARE_LIMIT}}
        recipe = load(tree, set_ or [])
    else:
        recipe = _settings(task, set_)
    if suite is None:
        judge = load_task(recipe.data, recipe.training.seed)
        return recipe, (judge, list(judge.held_out(recipe.evaluation.seed))[:prompts]), {"frozen": False}
    if not suite.exists():
        judge = load_task(recipe.data, recipe.training.seed)
        made = freeze(suite, suite.name.partition(".")[0], list(judge.held_out(recipe.evaluation.seed))[:prompts], recipe.data)
        print(f"froze {len(made.prompts)} items in {suite} (sha256 {made.sha256[:12]}…)")
    found = Suite.load(suite)
    return recipe, _suite_of(suite), {"frozen": True, "name": found.name, "sha256": found.sha256, "n": len(found.prompts)}


def _suite_of(path: Path) -> tuple[Any, Any]:
    from policyloop.evaluation.suite import Suite
    from policyloop.tasks import load_task

    suite = Suite.load(path)
    return load_task(suite.data, 0), list(suite.prompts)


def _name_of(path: Path, rules: Any) -> str:
    return next((name for name, file in rules.regressions.items() if Path(file) == path), path.name.partition(".")[0])


# --- the two sides ----------------------------------------------------------------------------------------------------------


def _judged(candidate: str, stable: str, recipe: Any, suites: Any, frozen: Any, limit: int | None, template: str | None) -> Any:
    from policyloop.evaluation.gate import agreement_of
    from policyloop.evaluation.gate import gate as judged
    from policyloop.evaluation.suite import contamination

    rules = recipe.evaluation.gate
    task, items = suites[""]
    found = contamination(items, _trained_on(candidate, task), rules.near, task)
    labels = (None, 0) if rules.judge_labels is None else agreement_of(Path(rules.judge_labels))
    old, said, _ = _side(stable, recipe, suites, limit, template, None)
    new, _, distance = _side(candidate, recipe, suites, limit, template, said)
    return judged(
        old[""],
        new[""],
        rules,
        regressions={name: (old[name], new[name]) for name in suites if name},
        contaminated=found,
        distance=distance,
        agreement=labels[0],
        labels=labels[1],
        suite=frozen,
    )


def _side(name: str, recipe: Any, suites: Any, limit: int | None, template: str | None, said: Any) -> tuple[Any, Any, Any]:
    """Evaluations by suite; where KL is asked for, what the stable version said, or how far the candidate is from that."""
    from policyloop.cli.evaluate import answered
    from policyloop.errors import BadInput
    from policyloop.evaluation.distance import answers, distance
    from policyloop.evaluation.evaluate import Evaluation
    from policyloop.evaluation.model import open_model

    if name.endswith(".json") and Path(name).exists():
        if len(suites) > 1:
            raise BadInput(f"regression suites and the saved evaluation {name}", "models", "--regression")
        return {"": Evaluation.load(Path(name))}, None, None
    template = template or recipe.model.template
    with open_model(name, template=template) as opened:
        found = {key: answered(opened, recipe, task, items, limit, template) for key, (task, items) in suites.items()}
        if recipe.evaluation.gate.max_kl is None:
            return found, None, None
        if said is not None:
            return found, None, distance(said, opened.engine)
        ids = {p.id: opened.renderer.prompt_ids(p) for p in suites[""][1][:KL_PROMPTS]}
        return found, answers(opened.engine, ids, KL_TOKENS), None


def _trained_on(candidate: str, task: Any) -> list[Any]:
    """Training prompts of the task, and of the run that the candidate comes from."""
    from policyloop.config import build
    from policyloop.errors import Problem
    from policyloop.export.origin import run_of
    from policyloop.models.catalogue import resolve
    from policyloop.tasks import DataSettings, load_task

    found = list(task.train())
    if candidate.endswith(".json"):
        return found
    run = run_of(resolve(candidate))
    if run is not None:
        config = run.manifest()["config"]
        try:
            found += load_task(build(DataSettings, config["data"], "data"), config["training"]["seed"]).train()
        except Problem as problem:
            print(f"note: the candidate's own training data cannot be read ({problem})")
    return found


def _kept(candidate: str, report: Any) -> Any:
    """The report as an event of a stored candidate."""
    from policyloop.evaluation.gate import EVENTS
    from policyloop.store import actor, stored

    found = None if Path(candidate).exists() else stored(candidate)
    if found is None:
        return None
    store, version = found
    store.append(
        version.name, EVENTS[report.verdict], actor(), report.reason, version=version.number, report=report.tree(), tries=5
    )
    return version
