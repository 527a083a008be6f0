"""Trackers: metrics also go to TensorBoard, MLflow, W&B or trackio. Adapters, off by default; each library loads only when chosen.

Example:
    >>> log = open_trackers(("tensorboard",), "policyloop", Path("runs/a"), config={})
    >>> log({"reward/mean": 0.5}, step=3)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from policyloop.errors import BadInput

Log = Callable[[Mapping[str, float], int], None]


def _library(name: str, install: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise BadInput(f"tracker library {name} is not installed", f"pip install {install}", "monitor.trackers") from problem


def _tensorboard(project: str, run: Path, config: Mapping[str, Any]) -> Log:
    writer = _library("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(run / "tensorboard"))

    def log(metrics: Mapping[str, float], step: int) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)
        writer.flush()

    return log


def _mlflow(project: str, run: Path, config: Mapping[str, Any]) -> Log:
    mlflow = _library("mlflow", "mlflow-skinny")
    mlflow.set_experiment(project)
    mlflow.start_run(run_name=run.name)
    mlflow.log_dict(dict(config), "config.json")
    return lambda metrics, step: mlflow.log_metrics(dict(metrics), step=step)


def _wandb(project: str, run: Path, config: Mapping[str, Any]) -> Log:
    session = _library("wandb", "wandb").init(project=project, name=run.name, config=dict(config), dir=str(run))
    return lambda metrics, step: session.log(dict(metrics), step=step)


def _trackio(project: str, run: Path, config: Mapping[str, Any]) -> Log:
    trackio = _library("trackio", "trackio")
    trackio.init(project=project, name=run.name, config=dict(config))
    return lambda metrics, step: trackio.log(dict(metrics), step=step)


TRACKERS: dict[str, Callable[[str, Path, Mapping[str, Any]], Log]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
    "trackio": _trackio,
}


def open_trackers(names: Sequence[str], project: str, run: Path, config: Mapping[str, Any]) -> Log:
    """One function that logs to all of them. Errors: BadInput when a library is missing."""
    logs = [TRACKERS[name](project, run, config) for name in names]

    def log(metrics: Mapping[str, float], step: int) -> None:
        for each in logs:
            each(metrics, step)

    return log
