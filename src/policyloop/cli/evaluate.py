"""`policyloop evaluate | compare | report | chat`: is it better, how sure are we, what does it look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL = Annotated[
    str,
    typer.Argument(
        help="A folder, run://NAME[@STEP|best|last], NAME@ALIAS|NUMBER of the store, s3://..., a catalogue name or hub id."
    ),
]
SIDE = Annotated[str, typer.Argument(help="MODEL, or a file saved by evaluate.")]
TASK_HELP = "A task (such as gsm8k), a data file, or a recipe (YAML) whose data and limits it takes."
PROMPTS = Annotated[int | None, typer.Option("--prompts", help="How many held-out prompts.")]
LIMIT = Annotated[
    int | None, typer.Option("--max-new-tokens", help="Limit per answer (default: the recipe's, 256 for a bare task).")
]
TEMPERATURE = Annotated[float | None, typer.Option("--temperature", help="0 = greedy (the default).")]
SAMPLES = Annotated[
    int | None, typer.Option("--samples", help="Answers per prompt; above 1 adds pass@k and needs a temperature.")
]
SEED = Annotated[int | None, typer.Option("--seed", help="Of held-out texts and of sampling.")]
TEMPLATE = Annotated[str | None, typer.Option("--template", help="`plain`, or a chat template (default: the model's own).")]
SET = Annotated[list[str] | None, typer.Option("--set", help="A data or evaluation key of the task: a.b=c. May be repeated.")]
BARE_LIMIT = 256


def _settings(task: str, set_: list[str] | None, **evaluation: Any) -> Any:
    """A recipe's data and evaluation tables from a recipe file or a task's name, with the flags laid over."""
    from policyloop.config import override
    from policyloop.recipe import load

    overrides = [*(set_ or []), *(f"evaluation.{key}={value}" for key, value in evaluation.items() if value is not None)]
    if task.endswith((".yaml", ".yml")):
        return load(Path(task), overrides)
    tree: dict[str, Any] = {
        "model": {"base_model_path": "tiny"},
        "data": {"task": task},
        "rollout": {"max_new_tokens": BARE_LIMIT},
    }
    for assignment in overrides:
        tree = override(tree, assignment)
    return load(tree)


def measure(model: str, recipe: Any, limit: int | None = None, template: str | None = None) -> Any:
    """MODEL on the held-out prompts of a recipe, at most `limit` tokens an answer (None: as the recipe says)."""
    from policyloop.evaluation.model import open_model
    from policyloop.tasks import load_task

    s, template = recipe.evaluation, template or recipe.model.template
    task = load_task(recipe.data, recipe.training.seed)
    prompts = list(task.held_out(s.seed))[: s.prompts]
    with open_model(model, template=template) as opened:
        return answered(opened, recipe, task, prompts, limit, template)


def answered(opened: Any, recipe: Any, task: Any, prompts: Any, limit: int | None = None, template: str | None = None) -> Any:
    """An open model on these prompts, decoded as the recipe says."""
    from policyloop.cli.console import bar
    from policyloop.config import to_tree
    from policyloop.evaluation.evaluate import evaluate as evaluated
    from policyloop.types import SamplingParams

    s = recipe.evaluation
    params = SamplingParams(
        max_new_tokens=limit or s.max_new_tokens or recipe.rollout.max_new_tokens,
        temperature=s.temperature,
        stop=recipe.rollout.stop,
        seed=s.seed,
        n=s.samples,
    )
    with bar(opened.version) as on_progress:
        about = {"model": opened.name, "path": str(opened.path), "dtype": opened.dtype, "template": template}
        about |= {"data": to_tree(recipe.data), "notes": list(task.notes)}
        return evaluated(
            opened.engine,
            opened.renderer,
            task,
            prompts,
            params,
            version=opened.version,
            about=about,
            chunk=max(1, opened.rows // s.samples),
            on_progress=on_progress,
        )


def evaluate(
    model: MODEL,
    task: Annotated[str, typer.Option("--task", help=TASK_HELP)],
    prompts: PROMPTS = None,
    max_new_tokens: LIMIT = None,
    temperature: TEMPERATURE = None,
    samples: SAMPLES = None,
    seed: SEED = None,
    template: TEMPLATE = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write every item and all conditions to this file.")] = None,
    set_: SET = None,
) -> None:
    """Held-out accuracy with its interval, lengths, and what they were measured under."""
    recipe = _settings(task, set_, prompts=prompts, temperature=temperature, samples=samples, seed=seed)
    found = measure(model, recipe, max_new_tokens, template)
    print("\n".join(described(found)))
    if save is not None:
        found.save(save)
        print(f"saved {save}")


def described(found: Any) -> list[str]:
    """An evaluation in the terminal."""
    from policyloop.evaluation import tries_of

    m, levels = found.metrics(), found.length_by_level()
    right = f"{m['eval/tokens_per_correct']:.1f} tokens per right answer" if any(i.correct for i in found.items) else "none right"
    tries = "  ".join(f"pass@{k} {found.pass_at(k)}" for k in tries_of(found.samples))
    shown = {level: r for level, r in levels.items() if r == r}
    by_level = "" if len(shown) < 2 else " (" + ", ".join(f"{level}: {r:+.2f}" for level, r in shown.items()) + ")"
    overall = (
        f"{m['eval/length_correct_corr']:+.2f}{by_level}"
        if shown
        else "none to be had: no difficulty has right and wrong answers"
    )
    decoding = found.conditions["decoding"]
    return [
        *(f"data: {note}" for note in found.about.get("notes", ())),
        f"{found.version} on {found.task}: {found.sentence()}",
        *([tries] if tries else []),
        f"length p50 {m['eval/length_p50']:.0f}, p95 {m['eval/length_p95']:.0f}; {right}; {m['eval/clusters']:.0f} clusters",
        f"rank correlation of length and correctness within difficulties: {overall}",
        "decoding: " + ", ".join(f"{k} {decoding[k]}" for k in ("max_new_tokens", "temperature", "seed", "n")),
        f"parser: {found.conditions['parser']['grader']}",
    ]


def compare(
    a: SIDE,
    b: SIDE,
    task: Annotated[str, typer.Option("--task", help="As for evaluate; not needed for saved files.")] = "",
    prompts: PROMPTS = None,
    max_new_tokens: LIMIT = None,
    temperature: TEMPERATURE = None,
    samples: SAMPLES = None,
    seed: SEED = None,
    template: TEMPLATE = None,
    margin: Annotated[float, typer.Option("--margin", help="How much less accuracy still counts as not worse.")] = 0.05,
    base: Annotated[
        str | None, typer.Option("--base", help="The start of A and B (MODEL or file): adds the excess length reduction.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", help="A condition that may differ, such as prompt or max_new_tokens. May be repeated."),
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the result as JSON.")] = None,
    set_: SET = None,
) -> int:
    """Paired comparison of B against A. Exit code 0 SHIP, 3 HOLD, 4 INCONCLUSIVE."""
    from policyloop.errors import BadInput
    from policyloop.evaluation.compare import compare as judge
    from policyloop.evaluation.evaluate import Evaluation

    def side(name: str) -> Any:
        if name.endswith(".json") and Path(name).exists():
            return Evaluation.load(Path(name))
        if not task:
            raise BadInput(f"{name} is a model and --task is missing", "a task, or files saved by evaluate", "--task")
        recipe = _settings(task, set_, prompts=prompts, temperature=temperature, samples=samples, seed=seed)
        return measure(name, recipe, max_new_tokens, template)

    start = None if base is None else side(base)
    result = judge(side(a), side(b), margin, base=start, allow=allow or ())
    print("\n".join(result.lines()))
    if save is not None:
        result.save(save)
        print(f"saved {save}")
    return int(result.exit_code)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are laid over each other.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the page goes (default: the first run's report.html).")] = None,
    baseline: Annotated[
        list[Path] | None, typer.Option("--baseline", help="A file saved by evaluate, drawn as a dashed line. May be repeated.")
    ] = None,
    step: Annotated[int | None, typer.Option("--step", help="Explain one step's group in the terminal instead.")] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="Which prompt of the step: its id, or a number from 0 (default: the most telling)."),
    ] = None,
) -> None:
    """One self-contained page of runs; with --step or --prompt, one group explained in the terminal."""
    from policyloop.evaluation.evaluate import Evaluation
    from policyloop.evaluation.report import explain, write_report

    if step is not None or prompt is not None:
        explain(runs[0], step, prompt)
        return
    baselines = [Evaluation.load(file) for file in baseline or ()]
    print(f"wrote {write_report(runs, out or runs[0] / 'report.html', baselines)}")


def chat(
    model: MODEL,
    versus: Annotated[str | None, typer.Option("--versus", help="A second MODEL, answers one under the other.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Ask once and leave.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Limit per answer.")] = BARE_LIMIT,
    temperature: Annotated[float, typer.Option("--temperature", help="0 = greedy.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of sampling.")] = 0,
    template: TEMPLATE = None,
) -> None:
    """Ask a model; an empty line or Ctrl-D ends it."""
    from policyloop.evaluation.chat import converse
    from policyloop.types import SamplingParams

    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    converse([m for m in (model, versus) if m], params, prompt, system, template)
