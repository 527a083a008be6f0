"""Guards: a metric, a limit, what to do, and the sentence a person reads. One table, read by the run, the report and the docs.

In: one step's metrics and `HealthSettings`-like thresholds. Out: the findings, each with its action. A metric that is absent is no finding.

Example:
    >>> [f.guard for f in check({"grad_norm": 2.0}, thresholds)]
    ['grad_norm_alarm', 'grad_norm_warn']
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["warn", "alarm"]


@dataclass(frozen=True, slots=True)
class Guard:
    """`metric` beyond the threshold called like the guard. `advice` says what it means and which key to change."""

    metric: str
    beyond: Literal["above", "below"]
    action: Action
    advice: str


@dataclass(frozen=True, slots=True)
class Finding:
    guard: str
    metric: str
    value: float
    limit: float
    action: Action
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.metric} is {self.value:.3g}, the limit is {self.limit:.3g}: {self.advice}"


GUARDS: dict[str, Guard] = {
    "grad_norm_alarm": Guard("grad_norm", "above", "alarm", "the update is unstable; lower training.lr"),
    "grad_norm_warn": Guard(
        "grad_norm", "above", "warn", "the gradient is clipped at training.max_grad_norm; watch the held-out curve"
    ),
    "entropy_low": Guard(
        "entropy", "below", "warn", "the policy hardly explores; raise rollout.temperature or lower training.lr"
    ),
    "entropy_high": Guard("entropy", "above", "warn", "the policy is close to noise; lower rollout.temperature or training.lr"),
    "kl_alarm": Guard(
        "approx_kl/k3", "above", "alarm", "one update moves the policy too far; lower training.lr or updates_per_rollout"
    ),
    "zero_std_warn": Guard(
        "groups/zero_std_frac",
        "above",
        "warn",
        "most groups teach nothing; take other prompts or a larger rl_strategy.group_size",
    ),
    "truncated_warn": Guard("length/truncated_frac", "above", "warn", "most answers are cut off; raise rollout.max_new_tokens"),
    "retained_zero_std_alarm": Guard(
        "gfpo/retained_zero_std_frac",
        "above",
        "alarm",
        "the filter keeps equal rewards; with baseline retained they teach nothing (use group, or metric shortest)",
    ),
}


def check(metrics: Mapping[str, float], thresholds: Any) -> list[Finding]:
    """Every guard that fires on these metrics."""
    found = []
    for name, guard in GUARDS.items():
        value, limit = metrics.get(guard.metric), getattr(thresholds, name)
        if value is None or math.isnan(value):
            continue
        if value > limit if guard.beyond == "above" else value < limit:
            found.append(Finding(name, guard.metric, value, limit, guard.action, guard.advice))
    return found
