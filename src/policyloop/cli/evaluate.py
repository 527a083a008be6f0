"""`policyloop evaluate | compare | report | chat`: is it better, how sure are we, what does it look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL = Annotated[str, typer.Argument(help="A model folder, run folder, run://NAME[@STEP|best|last], catalogue name or hub id.")]
TASK = Annotated[
    str, typer.Option("--task", help="A task (gsm8k, word_problems, …), a data file, or a recipe (YAML) whose data it takes.")
]
SET = Annotated[list[str] | None, typer.Option("--set", help="data.… or evaluation.… key of the task: a.b=c. May be repeated.")]


def _settings(task: str, set_: list[str] | None, **evaluation: Any) -> Any:
    """A recipe's data and evaluation tables from a recipe file or a task's name, with the flags laid over."""
    from policyloop.config import override
    from policyloop.recipe import load

    overrides = [*(set_ or []), *(f"evaluation.{key}={value}" for key, value in evaluation.items() if value is not None)]
    if task.endswith((".yaml", ".yml")):
        return load(Path(task), overrides)
    tree: dict[str, Any] = {"model": {"base_model_path": "tiny"}, "data": {"task": task}}
    for assignment in overrides:
        tree = override(tree, assignment)
    return load(tree)


def measure(model: str, recipe: Any, limit: int, template: str | None = None) -> Any:
    """MODEL on the held-out prompts of a recipe, at most `limit` tokens an answer."""
    from policyloop.evaluation.evaluate import evaluate as evaluated
    from policyloop.evaluation.model import open_model
    from policyloop.tasks import load_task
    from policyloop.types import SamplingParams

    s = recipe.evaluation
    task = load_task(recipe.data, recipe.training.seed)
    prompts = list(task.held_out(s.seed))[: s.prompts]
    opened = open_model(model, template=template or recipe.model.template)
    params = SamplingParams(max_new_tokens=limit, temperature=s.temperature, seed=s.seed, n=s.samples)
    found = evaluated(opened.engine, opened.renderer, task, prompts, params, version=opened.version)
    opened.engine.close()
    return found


def evaluate(
    model: MODEL,
    task: TASK,
    prompts: Annotated[int | None, typer.Option("--prompts", help="How many held-out prompts.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Limit per answer.")] = 256,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 = greedy.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="Answers per prompt; above 1 adds pass@k.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of held-out texts and of sampling.")] = None,
    template: Annotated[str | None, typer.Option("--template", help="`plain`, or a chat template.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write every item and all conditions to this file.")] = None,
    set_: SET = None,
) -> None:
    """Held-out accuracy with its interval, lengths, and what they were measured under."""
    recipe = _settings(task, set_, prompts=prompts, temperature=temperature, samples=samples, seed=seed)
    found = measure(model, recipe, max_new_tokens, template)
    print(f"{found.version} on {found.task}: {found.sentence()}")
    m = found.metrics()
    print(
        f"length p50 {m['eval/length_p50']:.0f}, p95 {m['eval/length_p95']:.0f}; {m['eval/tokens_per_correct']:.1f} tokens per right answer; "
        f"{m['eval/clusters']:.0f} clusters"
    )
    for level, r in found.length_by_level().items():
        print(f"rank correlation of length and correctness ({level}): {r:+.2f}")
    decoding = found.conditions["decoding"]
    print("decoding: " + ", ".join(f"{k} {decoding[k]}" for k in ("max_new_tokens", "temperature", "seed", "n")))
    if save is not None:
        found.save(save)
        print(f"saved {save}")


def compare(
    a: Annotated[str, typer.Argument(help="MODEL, or a file saved by evaluate.")],
    b: Annotated[str, typer.Argument(help="MODEL, or a file saved by evaluate.")],
    task: Annotated[str, typer.Option("--task", help="As for evaluate; not needed for two saved files.")] = "",
    prompts: Annotated[int | None, typer.Option("--prompts")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens")] = 256,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    margin: Annotated[float, typer.Option("--margin", help="How much less accuracy still counts as not worse.")] = 0.05,
    set_: SET = None,
) -> int:
    """Paired comparison of B against A. Exit code 0 SHIP, 3 HOLD, 4 INCONCLUSIVE."""
    from policyloop.errors import BadInput
    from policyloop.evaluation.compare import compare as judge
    from policyloop.evaluation.evaluate import Evaluation

    sides = []
    for name in (a, b):
        if name.endswith(".json") and Path(name).exists():
            sides.append(Evaluation.load(Path(name)))
        elif not task:
            raise BadInput("compare of two models without --task", "a task, or two files saved by evaluate", "--task")
        else:
            sides.append(measure(name, _settings(task, set_, prompts=prompts, seed=seed), max_new_tokens))
    result = judge(sides[0], sides[1], margin)
    print("\n".join(result.lines()))
    return int(result.exit_code)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are laid over each other.")],
    out: Annotated[Path | None, typer.Option("--out", help="Where the page goes (default: the first run's report.html).")] = None,
    step: Annotated[int | None, typer.Option("--step", help="Explain one step's group in the terminal instead.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Which prompt: its id, or a number from 0.")] = None,
) -> None:
    """One self-contained page of runs; with --step, one group explained in the terminal."""
    from policyloop.evaluation.report import explain, write_report

    if step is not None:
        explain(runs[0], step, prompt)
        return
    print(f"wrote {write_report(runs, out or runs[0] / 'report.html')}")


def chat(
    model: MODEL,
    versus: Annotated[str | None, typer.Option("--versus", help="A second MODEL, answers side by side.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Ask once and leave.")] = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens")] = 256,
    temperature: Annotated[float, typer.Option("--temperature")] = 0.0,
    template: Annotated[str | None, typer.Option("--template", help="`plain`, or a chat template.")] = None,
) -> None:
    """Ask a model; an empty line or Ctrl-D ends it."""
    from policyloop.evaluation.chat import converse
    from policyloop.types import SamplingParams

    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature)
    converse([m for m in (model, versus) if m], params, prompt, system, template)
