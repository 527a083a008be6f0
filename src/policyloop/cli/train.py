"""`policyloop train CONFIG`: one run from a config, resumable at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    force: Annotated[bool, typer.Option("--force", help="Train even if almost no group has signal.")] = False,
) -> None:
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
    from policyloop.cli.console import printer
    from policyloop.recipe import load
    from policyloop.run import start

    start(load(config, overrides), run or Path("runs") / config.stem, resume=resume, force=force, say=printer())
