"""Limits of the user's own, and whether what was measured keeps them.

In: a YAML file of `figure: {min: x}` or `figure: {max: x}`, and measured figures. Out: one line each, and whether all hold. A figure
that was not measured does not hold. The defaults are places to set, not claims.

    samples_per_s: {min: 100}
    rollout_tokens_per_s: {min: 300}
    peak_rss_gb: {max: 4}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from policyloop.config import load_yaml
from policyloop.errors import BadInput
from policyloop.types import settings


@settings
class Limit:
    """At least `min`, at most `max`; null = no limit on that side."""

    min: float | None = None
    max: float | None = None

    def holds(self, value: float) -> bool:
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)

    def __str__(self) -> str:
        sides = [f"at least {self.min:g}"] if self.min is not None else []
        return " and ".join(sides + ([f"at most {self.max:g}"] if self.max is not None else []))


def load_slo(path: Path) -> dict[str, Limit]:
    """Errors: BadInput names the figure whose limit cannot be read."""
    from policyloop.config import build

    tree = load_yaml(path)
    for name, limit in tree.items():
        if not isinstance(limit, Mapping) or not limit:
            raise BadInput(f"{name}: {limit!r}", "{min: number} or {max: number}", str(path))
    return {name: build(Limit, limit, name) for name, limit in tree.items()}


def judge(limits: Mapping[str, Limit], measured: Mapping[str, float]) -> tuple[list[str], bool]:
    """One sentence per limit, and whether all hold."""
    lines, good = [], True
    for name, limit in limits.items():
        value = measured.get(name)
        holds = value is not None and limit.holds(value)
        good &= holds
        said = "not measured" if value is None else f"{value:.4g}"
        lines.append(f"{'kept' if holds else 'MISSED':7} {name}: {said}, {limit}")
    return lines, good
