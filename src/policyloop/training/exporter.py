"""A run's own /metrics: each step's figures as gauges, counters and histograms of what a last value cannot say, and the machine.

In: a step's metrics (keys of `monitor.metrics.METRICS`). Out: an HTTP port that Prometheus scrapes, and for batch jobs that end before
the next scrape a push after every step.

Example:
    >>> exporter = Exporter(MonitorSettings(metrics_port=9400))
    >>> exporter.observe({"grad_norm": 0.3, "update/ok": 1.0, "time/update_s": 2.0})
    >>> exporter.close()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any
from urllib.error import URLError

from prometheus_client import Gauge, push_to_gateway, start_http_server

from policyloop.api.meters import Meters
from policyloop.errors import BadInput
from policyloop.monitor import MonitorSettings
from policyloop.monitor.host import HostCollector
from policyloop.monitor.metrics import RUN, describe, prometheus_name

log = logging.getLogger(__name__)
TIMES = {
    "time/update_s": "train_update_duration_seconds",
    "time/rollout_s": "train_rollout_duration_seconds",
    "time/publish_s": "train_publish_duration_seconds",
    "time/reward_s": "train_reward_duration_seconds",
}


class Exporter:
    """`port`: where it listens (the one asked for, or a free one for 0). Errors: BadInput when the port is taken."""

    def __init__(self, settings: MonitorSettings, job: str = "policyloop") -> None:
        self.settings, self.job = settings, job
        self.meters = Meters(RUN)
        self.meters.registry.register(HostCollector())
        self._gauges: dict[str, Gauge] = {}
        self._server: Any = None
        self._silent = False
        if settings.metrics_port is not None:
            try:
                self._server, _ = start_http_server(settings.metrics_port, settings.metrics_host, self.meters.registry)
            except OSError as problem:
                given = f"monitor.metrics_port {settings.metrics_port} on {settings.metrics_host}: {problem.strerror}"
                raise BadInput(given, "a free port, or null for none", "monitor.metrics_port") from problem

    @property
    def port(self) -> int | None:
        return self._server.server_port if self._server else None

    def observe(self, metrics: Mapping[str, float]) -> None:
        """One step's figures; unknown keys are no metric of ours and are left out."""
        for key, value in metrics.items():
            if describe(key) is not None:
                self._gauge(key).set(value)
        for kind in ("ok", "skipped", "nan"):
            self.meters.add("train_updates_total", metrics.get(f"update/{kind}", 0.0), reason=kind)
        for key, name in TIMES.items():
            if key in metrics:
                self.meters.observe(name, metrics[key])
        self.meters.set("train_last_step_timestamp_seconds", time.time())
        self._push()

    def saved(self) -> None:
        """A checkpoint is complete."""
        self.meters.set("train_last_checkpoint_timestamp_seconds", time.time())

    def _gauge(self, key: str) -> Gauge:
        if key not in self._gauges:
            row = describe(key)
            assert row is not None
            self._gauges[key] = Gauge(prometheus_name(key), row.help, registry=self.meters.registry)
        return self._gauges[key]

    def _push(self) -> None:
        """To the push gateway; its absence never stops training and is said once."""
        if self.settings.push_url is None:
            return
        try:
            push_to_gateway(self.settings.push_url, self.job, self.meters.registry, timeout=5)
            self._silent = False
        except (URLError, OSError) as problem:
            if not self._silent:
                log.warning("metrics were not pushed to %s: %s", self.settings.push_url, problem)
            self._silent = True

    def close(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
