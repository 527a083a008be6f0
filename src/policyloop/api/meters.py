"""/metrics: the numbers of a service, from the rows of a table (`monitor.metrics`); a name that is in no table cannot be counted.

Every registry is its application's own, so that several applications and tests live in one process.

Example:
    >>> meters = Meters(SERVING)
    >>> meters.add("requests_total", route="/predict", code="200"); meters.observe("request_duration_seconds", 0.2, route="/predict")
    >>> meters.text()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from policyloop.monitor.metrics import LATENCY_EDGES_S, Metric, service_name

disable_created_metrics()  # a series per series that says when it began: noise
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Meters:
    def __init__(self, table: Mapping[str, Metric]) -> None:
        self.registry = CollectorRegistry()
        self._by_name: dict[str, Any] = {}
        for name, metric in table.items():
            more: dict[str, Any] = {"buckets": LATENCY_EDGES_S} if metric.kind == "histogram" else {}
            made = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[metric.kind]
            self._by_name[name] = made(service_name(name), metric.help, metric.labels, registry=self.registry, **more)

    def knows(self, name: str) -> bool:
        return name in self._by_name

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        self._of(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        self._of(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._of(name, labels).observe(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _of(self, name: str, labels: dict[str, str]) -> Any:
        made = self._by_name[name]
        return made.labels(**labels) if labels else made
