"""`policyloop train CONFIG`: one run from a config, resumable at any moment; with --seeds several, one after another, and their mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer


def train(
    config: Annotated[Path, typer.Argument(help="A recipe (YAML).")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: a.b=c. May be repeated.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="The run folder (default: runs/<recipe name>).")] = None,
    resume: Annotated[str, typer.Option("--resume", help="auto: go on if the run folder holds a run; never: refuse.")] = "never",
    strategy: Annotated[str | None, typer.Option("--strategy", help="rl_strategy.type")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="training.batch_size")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="training.steps")] = None,
    save_steps: Annotated[int | None, typer.Option("--save-steps", help="training.save_steps")] = None,
    dataset_cache_dir: Annotated[str | None, typer.Option("--dataset-cache-dir", help="data.dataset_cache_dir")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="training.seed")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Several runs, one after another: 0,1,2.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Train even if almost no group has signal.")] = False,
    launcher: Annotated[str, typer.Option("--launcher", help="local: this process; torchrun: --ranks processes.")] = "local",
    ranks: Annotated[int, typer.Option("--ranks", help="Processes that --launcher torchrun starts on this machine.")] = 1,
    local_rank: Annotated[
        int | None, typer.Option("--local-rank", help="Accepted: launchers add it (LOCAL_RANK decides).")
    ] = None,
) -> int:
    """Train from CONFIG. Exit codes: 0 done, 1 failed, 2 bad input, 75 interrupted and resumable."""
    flags = {
        "rl_strategy.type": strategy,
        "training.batch_size": batch_size,
        "training.steps": steps,
        "training.save_steps": save_steps,
        "data.dataset_cache_dir": dataset_cache_dir,
        "training.seed": seed,
    }
    overrides = [*(set_ or []), *(f"{key}={value}" for key, value in flags.items() if value is not None)]
    from policyloop.launch import LAUNCHERS, Launch, is_rank, noting_exit

    if launcher not in LAUNCHERS:
        from policyloop.errors import BadInput

        raise BadInput(f"--launcher {launcher}", ", ".join(LAUNCHERS), "--launcher")
    begin = LAUNCHERS[launcher]
    if begin is not None and not is_rank():
        from policyloop.recipe import load

        port = load(
            config, overrides
        ).training.dist.master_port  # what is wrong with the recipe is said once, before any rank starts
        more = [("--run", run), ("--resume", resume), ("--seeds", seeds)]
        flags_on = [x for name, value in more if value is not None for x in (name, str(value))]
        sets = [x for o in overrides for x in ("--set", o)]
        return begin(["train", str(config), *sets, *flags_on, *(["--force"] if force else [])], Launch(ranks, port))
    with noting_exit():
        return here(config, overrides, run, resume, seeds, force)


def here(config: Path, overrides: list[str], run: Path | None, resume: str, seeds: str | None, force: bool) -> int:
    """In this process."""
    from policyloop.cli.console import printer
    from policyloop.recipe import load
    from policyloop.run import start

    folder, say = run or Path("runs") / config.stem, printer()

    def one(path: Path, more: Sequence[str] = ()) -> None:
        start(load(config, [*overrides, *more]), path, resume=resume, force=force, say=say)

    if seeds is not None:
        return several(one, folder, numbers(seeds), say)
    one(folder)
    return 0


def numbers(text: str) -> list[int]:
    """`0,1,2`. Errors: BadInput."""
    from policyloop.errors import BadInput

    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdigit() for p in parts) or len(set(parts)) < len(parts):
        raise BadInput(f"--seeds {text}", "different whole numbers with commas between them, like 0,1,2", "--seeds")
    return [int(p) for p in parts]


def several(one: Callable[[Path, Sequence[str]], None], folder: Path, seeds: Sequence[int], say: Callable[[str], None]) -> int:
    """A run per seed in `<folder>-seed<n>`, then the mean over seeds. A seed that fails is said and counts with what it reached."""
    from policyloop.errors import BadInput, Interrupted, Problem
    from policyloop.training.folder import finite

    failed = 0
    for seed in seeds:
        say(f"--- seed {seed} ---")
        try:
            one(folder.with_name(f"{folder.name}-seed{seed}"), [f"training.seed={seed}"])
        except (BadInput, Interrupted):
            raise
        except Problem as problem:
            failed += 1
            say(f"seed {seed} failed: {problem}")
    found = summary({seed: folder.with_name(f"{folder.name}-seed{seed}") for seed in seeds})
    folder.with_name(f"{folder.name}-seeds.json").write_text(json.dumps(finite(found), indent=1) + "\n")
    say("\n".join(lines(found)))
    return 1 if failed else 0


def summary(runs: dict[int, Path]) -> dict[str, Any]:
    """Held-out accuracy and length (else the sampled reward) of every seed's last evaluation, with Student's interval over the seeds."""
    from policyloop.evaluation.report_data import read_run
    from policyloop.stats import mean_interval

    per: dict[str, dict[int, float]] = {}
    for seed, path in runs.items():
        run = read_run(path)
        last = run.held_out[-1] if run.held_out else {}
        reward = run.series("reward/mean")[1][-1:]
        figures = {
            "accuracy": last.get("accuracy"),
            "length_mean": last.get("length_mean"),
            "reward": reward[0] if reward else None,
        }
        for name, value in figures.items():
            if isinstance(value, int | float):
                per.setdefault(name, {})[seed] = float(value)
    made: dict[str, Any] = {}
    for name, values in per.items():
        over = mean_interval(list(values.values()))
        made[name] = {"seeds": values, "mean": over.value, "low": over.low, "high": over.high}
    return made


def lines(found: dict[str, Any]) -> list[str]:
    from policyloop.stats import Interval

    names = {"accuracy": "held-out accuracy", "length_mean": "held-out length", "reward": "reward of the last step"}
    return [
        f"{names[name]} over {len(f['seeds'])} seeds: {Interval(f['mean'], f['low'], f['high'])}"
        + f"   ({', '.join(f'{seed}: {value:.3f}' for seed, value in f['seeds'].items())})"
        for name, f in found.items()
    ]
