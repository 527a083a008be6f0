"""Monitoring: the one table of metrics (`metrics`), the guards that act on them (`guards`), trackers that pass them on (`trackers`).

No torch here. This file holds the settings.
"""

from __future__ import annotations

from typing import Literal

from policyloop.types import settings

Tracker = Literal["tensorboard", "mlflow", "wandb", "trackio"]


@settings
class MonitorSettings:
    """trackers: where metrics go besides metrics.jsonl (each needs its library). project: the name they file the run under."""

    trackers: tuple[Tracker, ...] = ()
    project: str = "policyloop"
