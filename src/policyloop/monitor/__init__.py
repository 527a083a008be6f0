"""Monitoring: the one table of metrics (`metrics`), the guards that act on them (`guards`), trackers that pass them on (`trackers`).

No torch here. This file holds the settings.
"""

from __future__ import annotations

from typing import Literal

from policyloop.types import settings

Tracker = Literal["tensorboard", "mlflow", "wandb", "trackio"]


@settings
class MonitorSettings:
    """trackers: where metrics go besides metrics.jsonl (each needs its library). project: the name they file the run under.

    metrics_port: where a run answers /metrics for Prometheus (9400 by custom), null = nowhere. metrics_host: the address it binds.
    push_url: host:port of a Prometheus push gateway that gets the figures after each step, for jobs no scrape reaches.
    """

    trackers: tuple[Tracker, ...] = ()
    project: str = "policyloop"
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    push_url: str | None = None
