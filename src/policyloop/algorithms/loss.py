"""What an objective returns: the loss to differentiate and figures that merge over micro-batches and ranks.

Example:
    >>> Stat.mean(3.0, 2).merge(Stat.mean(1.0, 2)).result()   # (3 + 1) / (2 + 2)
    1.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stat:
    """A figure as numerator and denominator, so that any split of the rows gives the same result."""

    kind: Literal["mean", "sum", "min", "max", "std"]
    value: float
    count: float = 1.0
    squares: float = 0.0

    @staticmethod
    def mean(total: float, count: float) -> Stat:
        return Stat("mean", total, count)

    def merge(self, other: Stat) -> Stat:
        if self.kind in ("min", "max"):
            pick = min if self.kind == "min" else max
            return Stat(self.kind, pick(self.value, other.value))
        return Stat(self.kind, self.value + other.value, self.count + other.count, self.squares + other.squares)

    def result(self) -> float:
        if self.kind == "mean":
            return self.value / self.count if self.count else math.nan
        if self.kind == "std":
            if not self.count:
                return math.nan
            return math.sqrt(max(0.0, self.squares / self.count - (self.value / self.count) ** 2))
        return self.value


Metrics = dict[str, Stat]


@dataclass(slots=True)
class Loss:
    """`value` is a scalar with a graph: the sum of weight · loss over the rows given, which micro-batches and ranks add up."""

    value: Tensor
    metrics: Metrics


def token_stats(name: str, x: Tensor, mask: Tensor, kinds: str = "mean") -> Metrics:
    """Stats of `x` (N, T) over `mask`: `kinds` names any of mean, std, min, max. Nothing over an empty mask."""
    chosen = x.detach()[mask].double()
    if chosen.numel() == 0:
        return {}
    total, count = float(chosen.sum()), float(chosen.numel())
    table = {
        "mean": Stat("mean", total, count),
        "std": Stat("std", total, count, float((chosen**2).sum())),
        "min": Stat("min", float(chosen.min())),
        "max": Stat("max", float(chosen.max())),
    }
    wanted = kinds.split()
    return {f"{name}/{kind}" if len(wanted) > 1 or "/" not in name else name: table[kind] for kind in wanted}
