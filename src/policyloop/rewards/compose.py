"""From K raw rewards to one number per completion: combination, range control, length terms. The one aggregation there is.

Shapes: parts (N, K) float64, NaN = not applicable (a row that some reward could not score is NaN as a whole); rewards (N,), NaN = unscored.

Example (sum, weights 1 and 0.2): parts [[1, 1], [0, nan]] -> [1.2, 0.0].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policyloop.rewards import RangeControl, RewardsSettings, TokenEfficiency

Array = NDArray[np.float64]
EPS = 1e-4  # GDPO's, as in its reference code
FLAT = 1e-8  # a spread below this is rounding


def combine(parts_NK: Array, weights_K: Array, group_N: NDArray[np.int64], settings: RewardsSettings) -> Array:
    """(N,) composed rewards; NaN where no reward applies."""
    if settings.combine == "normalize_then_sum":
        return normalize_then_sum(parts_NK, weights_K, group_N)
    if settings.combine == "conditional":
        gate_N = parts_NK[:, 0]
        total = np.where(gate_N >= settings.gate_threshold, nansum(parts_NK * weights_K), settings.gate_fail)
        return np.where(np.isnan(gate_N), np.nan, total)
    return nansum(parts_NK * weights_K)


def nansum(x_NK: Array) -> Array:
    """Row sums without the parts that do not apply; NaN where none does."""
    return np.where(np.isnan(x_NK).all(1), np.nan, np.nansum(x_NK, 1))


def normalize_then_sum(parts_NK: Array, weights_K: Array, group_N: NDArray[np.int64], eps: float = EPS) -> Array:
    """GDPO (2601.05242): z-score of each reward inside its group (ddof 1), weighted sum, z-score over the batch of sequences."""
    normal = np.full_like(parts_NK, np.nan)
    for g in np.unique(group_N):
        rows = group_N == g
        for k in range(parts_NK.shape[1]):
            normal[rows, k] = zscore(parts_NK[rows, k], eps)
    return zscore(nansum(normal * weights_K), eps)


def zscore(x: Array, eps: float) -> Array:
    """(x - mean) / (std + eps) over what applies; a spread that is only rounding gives 0."""
    known = x[~np.isnan(x)]
    if len(known) < 2:
        return np.where(np.isnan(x), np.nan, 0.0)
    std = known.std(ddof=1)
    return np.where(np.isnan(x), np.nan, 0.0) if std < FLAT else (x - known.mean()) / (std + eps)


def length_penalty(length_N: NDArray[np.int64], budget: int, threshold: float) -> Array:
    """(N,) in [-1, 0]: 0 up to threshold · budget, then linear down to -1 at the budget and beyond (= DAPO's soft overlong term)."""
    if threshold >= 1:
        return np.zeros(len(length_N))
    return -np.clip((length_N / budget - threshold) / (1 - threshold), 0.0, 1.0)


def apply_token_efficiency(
    rewards_N: Array, metric_N: Array, length_N: NDArray[np.int64], limit: int, settings: TokenEfficiency
) -> Array:
    """The length term, by default on right answers only. `drop`: over-long completions become unscored."""
    penalty = length_penalty(length_N, settings.length_budget or limit, settings.length_ratio_threshold)
    touched = metric_N > 0 if settings.only_if_correct else np.ones(len(rewards_N), dtype=bool)
    if settings.action == "drop":
        return np.where(touched & (penalty < 0), np.nan, rewards_N)
    return rewards_N + settings.weight * np.where(touched, penalty, 0.0)


class Ranger:
    """Range control with its memory (running_z), which is part of the checkpoint."""

    def __init__(self, settings: RangeControl | None) -> None:
        self.settings = settings
        self.count, self.mean, self.m2 = 0, 0.0, 0.0

    def __call__(self, rewards_N: Array) -> Array:
        s = self.settings
        if s is None:
            return rewards_N
        if s.mode == "clip":
            return np.clip(rewards_N, s.low, s.high)
        if s.mode == "tanh":
            return np.tanh(rewards_N)
        std = math.sqrt(self.m2 / (self.count - 1)) if self.count > 1 else 0.0
        shaped = (rewards_N - self.mean) / (std if std > FLAT else 1.0)  # equal rewards so far say nothing of scale
        for value in rewards_N[~np.isnan(rewards_N)]:  # Welford; what was learned in this step is used from the next on
            self.count += 1
            delta = float(value) - self.mean
            self.mean += delta / self.count
            self.m2 += delta * (float(value) - self.mean)
        return shaped

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load(self, state: Mapping[str, Any]) -> None:
        self.count, self.mean, self.m2 = int(state["count"]), float(state["mean"]), float(state["m2"])
