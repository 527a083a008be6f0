"""`policyloop bench`: how fast this machine samples and learns, how far that is from its own floor, and whether your limits hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

Model = Annotated[str, typer.Argument(help="MODEL: name, folder or hub id.")]
Task = Annotated[str, typer.Option("--task", help="Whose prompts: a task or a data file.")]
Data = Annotated[str | None, typer.Option("--data", help="Folder or file of the task's rows.")]
Prompts = Annotated[int, typer.Option("--prompts", help="Groups of one step.")]
Group = Annotated[int, typer.Option("--group", help="Completions of each prompt.")]
Tokens = Annotated[int, typer.Option("--tokens", help="Tokens of each completion, forced.")]
Kept = Annotated[int, typer.Option("--kept", help="Completions of each group that are learned from (GFPO); 0 = all.")]
Lora = Annotated[int, typer.Option("--lora-r", help="Rank of the adapter on all linear layers; 0 = full fine-tuning.")]
Precision = Annotated[str, typer.Option("--precision", help="Of the frozen weights: fp32 or bf16.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Measured steps after one that warms up.")]
Threads = Annotated[int, typer.Option("--threads", help="CPU threads.")]
Slo = Annotated[Path | None, typer.Option("--slo", help="YAML of limits: figure: {min: x} or {max: x}.")]
Save = Annotated[Path | None, typer.Option("--save", help="Write all rounds as JSON.")]
ROLLOUT = ("rollout_s", "rollout_tokens_per_s", "rollout_over_floor", "gemm_gflop_s", "read_gb_s", "peak_rss_gb")


def rollout(
    model: Model = "smollm2-135m-instruct",
    task: Task = "word_problems",
    data: Data = None,
    prompts: Prompts = 4,
    group: Group = 8,
    tokens: Tokens = 64,
    precision: Precision = "fp32",
    rounds: Rounds = 3,
    threads: Threads = 1,
    slo: Slo = None,
    save: Save = None,
) -> int:
    """Sampling alone: tokens per second and time over the floor."""
    shape = _shape(prompts, group, tokens, 0, 16, precision, rounds, threads)
    return _tell(_measure(model, task, data, shape, update=False), ROLLOUT, shape, slo, save)


def train(
    model: Model = "smollm2-135m-instruct",
    task: Task = "word_problems",
    data: Data = None,
    prompts: Prompts = 4,
    group: Group = 8,
    tokens: Tokens = 64,
    kept: Kept = 0,
    lora_r: Lora = 16,
    precision: Precision = "fp32",
    rounds: Rounds = 3,
    threads: Threads = 1,
    slo: Slo = None,
    save: Save = None,
) -> int:
    """A whole GRPO or GFPO step, from prompts to published weights."""
    shape = _shape(prompts, group, tokens, kept, lora_r, precision, rounds, threads)
    return _tell(_measure(model, task, data, shape, update=True), None, shape, slo, save)


def serve(
    url: Annotated[str, typer.Argument(help="A running server, such as http://127.0.0.1:8000.")] = "http://127.0.0.1:8000",
    clients: Annotated[int, typer.Option("--clients", help="Closed loop: so many at once.")] = 8,
    rate: Annotated[float | None, typer.Option("--rate", help="Open loop instead: requests per second, at random times.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Of measuring, after the warm-up.")] = 30.0,
    warm_up_s: Annotated[float, typer.Option("--warm-up-s", help="Thrown away.")] = 5.0,
    words: Annotated[int, typer.Option("--words", help="Of each prompt, about a token each.")] = 64,
    tokens: Annotated[int, typer.Option("--tokens", help="Of each answer, forced.")] = 32,
    shared: Annotated[int, typer.Option("--shared", help="Words at the beginning that all prompts have in common.")] = 0,
    model: Annotated[str | None, typer.Option("--model", help="As the server calls it (default: its own).")] = None,
    key: Annotated[str | None, typer.Option("--key-file", help="File that holds the API key.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts and arrivals.")] = 0,
    slo: Annotated[Path | None, typer.Option("--slo", help="YAML of limits (default: p99 500 ms, 200 requests/s).")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write figures and load as JSON.")] = None,
) -> int:
    """Load on a running server: first token, per token, whole latency, requests and tokens per second."""
    import datetime as dt

    from policyloop.bench.load import DEFAULT_SLO, Load, figures, measure
    from policyloop.bench.slo import judge, load_slo
    from policyloop.config import to_tree
    from policyloop.errors import Exit

    load = Load(
        clients=clients, rate=rate, seconds=seconds, warm_up_s=warm_up_s, words=words, tokens=tokens, shared=shared, model=model, seed=seed
    )  # fmt: skip
    found = figures(measure(url, load, Path(key).read_text().strip() if key else None))
    print("\n".join(f"{name:24}{value:10.3f}" for name, value in found.items()))
    if save:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        save.write_text(json.dumps({"at": at, "url": url, "load": to_tree(load), "figures": found}, indent=1) + "\n")
    lines, good = judge(load_slo(slo) if slo else DEFAULT_SLO, found)
    print("\n".join(lines))
    return Exit.DONE if good else Exit.NO


def _shape(prompts: int, group: int, tokens: int, kept: int, lora_r: int, precision: str, rounds: int, threads: int) -> Any:
    from policyloop.bench import Shape
    from policyloop.config import build

    given = {"prompts": prompts, "group": group, "tokens": tokens, "kept": kept, "lora_r": lora_r}
    return build(Shape, {**given, "precision": precision, "rounds": rounds, "threads": threads}, "bench")


def _measure(model: str, task: str, data: str | None, shape: Any, *, update: bool) -> list[dict[str, float]]:
    from policyloop.bench.step import Step, rounds
    from policyloop.tasks import DataSettings, load_task

    prompts = load_task(DataSettings(task=task, path=data), 0).train()
    return rounds(Step(model, shape, prompts, update=update))


def _tell(
    found: Sequence[Mapping[str, float]], shown: Sequence[str] | None, shape: Any, slo: Path | None, save: Path | None
) -> int:
    """Medians as a table, the JSON, the verdict on the user's limits: 0 all hold, 3 one does not."""
    import datetime as dt
    import statistics

    from policyloop.bench.slo import judge, load_slo
    from policyloop.config import to_tree
    from policyloop.errors import Exit

    limits = load_slo(slo) if slo else {}
    medians = {name: statistics.median(r[name] for r in found) for name in found[0]}
    for name in shown or medians:
        print(f"{name:24}{medians[name]:10.3f}")
    if save:
        at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        save.write_text(json.dumps({"at": at, "shape": to_tree(shape), "median": medians, "rounds": found}, indent=1) + "\n")
    lines, good = judge(limits, {name: medians[name] for name in shown or medians})
    print("\n".join(lines), end="\n" if lines else "")
    return Exit.DONE if good else Exit.NO
