"""Health over time: what one step's metrics mean given those before them. The same code watches a run and reads a finished one.

In: rows of metrics, one step after another, and thresholds (`training.health`). Out: `health/*` figures per step and the findings that
are due. Its whole state follows from metrics.jsonl: whoever resumes shows it the rows that are there.

Example:
    >>> watch = Watch(HealthSettings())
    >>> row |= watch.derive(row)
    >>> [f.sentence for f in watch.judge(row)]
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from policyloop.monitor.guards import Action, Finding, beyond, judged

SPAN = 5  # steps that are averaged at the start and now
MEMORY = 20  # steps whose median a gradient norm is compared with
STARTS = ("entropy", "length/mean", "reward/mean", "metric/mean", "reward/std")
Row = Mapping[str, Any]


class Watch:
    """`metric` is the held-out figure that decides; `start` what it was before training (`accuracy`, `accuracy_low`, ...)."""

    def __init__(self, thresholds: Any, metric: str = "accuracy", higher: bool = True, start: Row | None = None) -> None:
        self.thresholds, self.metric, self.sign = thresholds, f"eval/{metric}", 1 if higher else -1
        self.first: dict[str, list[float]] = {key: [] for key in STARTS}
        self.last: dict[str, deque[float]] = {key: deque(maxlen=SPAN) for key in STARTS}
        self.norms: deque[float] = deque(maxlen=MEMORY)
        self.ok = self.refused = 0.0
        self.falls = 0
        self.score: float | None = None
        self.border: float | None = None  # the worse end of the interval before training
        self.streak: dict[str, int] = {}
        if start is not None:
            self._held_out({f"eval/{key}": value for key, value in start.items()})

    # --- figures ------------------------------------------------------------------------------------------------------------

    def derive(self, row: Row) -> dict[str, float]:
        """The `health/*` figures of the next step. Call once per step, in order."""
        for key in STARTS:
            if (value := number(row, key)) is not None:
                if len(self.first[key]) < SPAN:
                    self.first[key].append(value)
                self.last[key].append(value)
        return {**self._update(row), **self._drift(row), **rewards(row), **self._held_out(row)}

    def _update(self, row: Row) -> dict[str, float]:
        self.ok += number(row, "update/ok") or 0.0
        self.refused += number(row, "update/nan") or 0.0
        found = {}
        if self.ok + self.refused:
            found["health/update_success"] = self.ok / (self.ok + self.refused)
        norm = number(row, "grad_norm")
        if norm is not None:
            if len(self.norms) >= SPAN and (usual := statistics.median(self.norms)) > 0:
                found["health/grad_norm_spike"] = norm / usual
            if norm > 0:
                self.norms.append(norm)
        low, high = number(row, "clip/low"), number(row, "clip/high")
        if low is not None and high is not None:
            found["health/clip_share"] = low + high
        return found

    def _drift(self, row: Row) -> dict[str, float]:
        """Now against the start, means over a few steps; nothing before both are whole and apart."""
        if number(row, "reward/mean") is None or len(self.first["reward/mean"]) < SPAN:
            return {}
        found = {}
        for key, name in (("entropy", "health/entropy_ratio"), ("length/mean", "health/length_ratio")):
            if self.first[key] and (began := statistics.fmean(self.first[key])) > 0:
                found[name] = statistics.fmean(self.last[key]) / began
        spread = statistics.fmean(self.first["reward/std"]) if self.first["reward/std"] else 0.0
        chance = statistics.fmean(self.first["metric/mean"]) if self.first["metric/mean"] else 0.0
        outcome = self._rise("metric/mean") / max(0.1, (max(0.0, chance * (1 - chance))) ** 0.5)
        found["health/reward_drift"] = self._rise("reward/mean") / max(0.1, spread) - max(0.0, outcome)
        return found

    def _rise(self, key: str) -> float:
        return statistics.fmean(self.last[key]) - statistics.fmean(self.first[key]) if self.first[key] else 0.0

    def _held_out(self, row: Row) -> dict[str, float]:
        value = number(row, self.metric)
        if value is None:
            return {}
        score = self.sign * value
        self.falls = self.falls + 1 if self.score is not None and score < self.score else 0
        self.score = score
        if self.border is None:  # the first evaluation is the start
            ends = [number(row, f"{self.metric}_{end}") for end in ("low", "high")]
            self.border = min((self.sign * end for end in ends if end is not None), default=score)
        return {"health/falls_in_row": float(self.falls), "health/below_start": self.border - score}

    # --- findings -----------------------------------------------------------------------------------------------------------

    def judge(self, row: Row) -> list[tuple[Finding, bool]]:
        """Every finding that is due at this step, and whether it is new. `action` is "warn" where nothing else is due yet."""
        out = {name: (guard, value, limit) for name, guard, value, limit in beyond(row, self.thresholds)}
        for name, _, _, _ in judged(row, self.thresholds):
            self.streak[name] = self.streak.get(name, 0) + 1 if name in out else 0
        found = []
        for name, (guard, value, limit) in out.items():
            over = self.streak[name] - guard.after
            if over < 0:
                continue
            action: Action = self.thresholds.actions.get(name, guard.action)
            due = action != "warn" and over >= guard.patience and (over - guard.patience) % COOLING == 0
            finding = Finding(name, guard.metric, value, limit, guard.severity, action if due else "warn", guard.advice)
            if over == 0 or due:
                found.append((finding, over == 0))
        return found


COOLING = 5  # steps between two actions of the same guard, so that the first can show what it does


def number(row: Row, key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and value == value else None


def rewards(row: Row) -> dict[str, float]:
    """Which reward decides, how much of it is length, how many completions went without."""
    found = {}
    shares = [abs(v) for k, v in row.items() if k.startswith("reward/share/") and isinstance(v, int | float) and v == v]
    if len(shares) > 1 and sum(shares) > 0:
        found["health/reward_dominance"] = max(shares) / sum(shares)
    by_length = {k.removeprefix("reward/length_corr/"): number(row, k) for k in row if k.startswith("reward/length_corr/")}
    weighed = [(abs(number(row, f"reward/share/{name}") or 0.0), abs(c)) for name, c in by_length.items() if c is not None]
    if weighed and (total := sum(share for share, _ in weighed)) > 0:
        found["health/length_reward"] = sum(share * c for share, c in weighed) / total
    unscored, count, size = number(row, "reward/unscored"), number(row, "groups/count"), number(row, "groups/size_mean")
    if unscored is not None and count:
        scored = count * (size or 0.0)
        found["health/unscored_share"] = unscored / max(1.0, scored + unscored)
    return found
