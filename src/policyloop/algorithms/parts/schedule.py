"""Numbers that move with progress. A part's number is a float or one of these; `resolve` gives plain numbers once per update.

Example:
    >>> Linear(start=0.9, end=0.95, fraction=0.5)(Progress(update=25, updates=100))
    0.925
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from policyloop.types import Progress, settings


@settings
class Linear:
    """From `start` to `end` over the first `fraction` of the planned updates, then `end`."""

    start: float
    end: float
    fraction: float = 1.0

    def __call__(self, progress: Progress) -> float:
        share = min(progress.fraction / self.fraction, 1.0) if self.fraction > 0 else 1.0
        return self.start + (self.end - self.start) * share


@settings
class Decay:
    """max(floor, start · rate^⌊update / every⌋) (S3-29: 0.2 · 0.95^⌊s/1000⌋ with floor 0.05)."""

    start: float
    rate: float = 0.95
    every: int = 1000
    floor: float = 0.0

    def __call__(self, progress: Progress) -> float:
        return max(self.floor, self.start * self.rate ** (progress.update // self.every))


Number = float | Linear | Decay
SCHEDULES: dict[str, type] = {"linear": Linear, "decay": Decay}


def resolve(part: Any, progress: Progress, controllers: Mapping[str, float], where: str = "") -> Any:
    """The part with every schedule and controller replaced by a plain number. Controllers are named by path (`kl.coef`)."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value, path = getattr(part, field.name), f"{where}{field.name}"
        if path in controllers:
            changes[field.name] = controllers[path]
        elif isinstance(value, (Linear, Decay)):
            changes[field.name] = value(progress)
        elif dataclasses.is_dataclass(value):
            fresh = resolve(value, progress, controllers, f"{path}.")
            if fresh is not value:
                changes[field.name] = fresh
    return dataclasses.replace(part, **changes) if changes else part


def scaled(part: Any, factors: Mapping[str, float], where: str = "") -> Any:
    """The part with the numbers at the given paths multiplied (`kl.coef`, `surrogate.low`); paths it does not have are passed over."""
    if not factors or not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        value, path = getattr(part, field.name), f"{where}{field.name}"
        if path in factors and isinstance(value, int | float):
            changes[field.name] = value * factors[path]
        elif dataclasses.is_dataclass(value) and (fresh := scaled(value, factors, f"{path}.")) is not value:
            changes[field.name] = fresh
    return dataclasses.replace(part, **changes) if changes else part


def plain(value: Number) -> float:
    """A number that `resolve` has been over."""
    assert isinstance(value, (int, float)), f"{value} was not resolved"
    return float(value)
