"""When the next round is due: enough new evidence, worse answers, other traffic; with hysteresis, a budget and quiet hours.

In: the journal (through `collect`) and the notes of earlier rounds. Out: a reason, or why not. Evidence arms itself again, since it is
counted from the newest set. A level (worse answers, other traffic) that has opened a round opens the next one only after it has been
below half its threshold: a level that stays high does not open a round a day.

Example:
    >>> due(TriggerSettings(evidence=100), Signals(evidence=120), armed=ALL)
    'evidence: 120 requests with new feedback (100 asked for)'
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from policyloop.errors import BadInput
from policyloop.types import settings

ALL = ("reward_drop", "drift")
ENOUGH = 50  # answers on each side below which a level says nothing


@settings
class TriggerSettings:
    """What opens a round; null = never. evidence: requests with feedback that the newest set does not hold. reward_drop: how much lower
    the mean value of the last `window_days` is than before. drift: distance of the lengths of answers from before (Kolmogorov-Smirnov)."""

    evidence: int | None = 100
    reward_drop: float | None = 0.1
    drift: float | None = 0.3
    window_days: float = 1.0


@settings
class BudgetSettings:
    """Rounds in 24 hours, hours of training in 7 days; null = no limit."""

    rounds_per_day: int | None = 2
    train_hours_per_week: float | None = None


@dataclass(frozen=True, slots=True)
class Signals:
    evidence: int = 0
    reward_drop: float = math.nan
    drift: float = math.nan


def signals(
    rows: Sequence[dict[str, Any]], values: Sequence[float | None], evidence: int, chosen: TriggerSettings, now: float
) -> Signals:
    """`rows`: exchanges, `values`: what each answer was worth (None: nobody knows)."""
    from scipy.stats import ks_2samp

    edge = now - chosen.window_days * 86400
    worth: tuple[list[float], list[float]] = ([], [])
    lengths: tuple[list[float], list[float]] = ([], [])
    for row, value in zip(rows, values, strict=True):
        side = int(row["at"] >= edge)
        lengths[side].append(float(row["tokens"]))
        if value is not None:
            worth[side].append(value)
    drop = sum(worth[0]) / len(worth[0]) - sum(worth[1]) / len(worth[1]) if min(map(len, worth)) >= ENOUGH else math.nan
    drift = float(ks_2samp(*lengths).statistic) if min(map(len, lengths)) >= ENOUGH else math.nan  # type: ignore[union-attr]
    return Signals(evidence, drop, drift)


def due(chosen: TriggerSettings, seen: Signals, armed: Collection[str]) -> str | None:
    """The reason for a round, or None."""
    if chosen.evidence is not None and seen.evidence >= chosen.evidence:
        return f"evidence: {seen.evidence} requests with new feedback ({chosen.evidence} asked for)"
    for name in ALL:
        limit, value = getattr(chosen, name), getattr(seen, name)
        if limit is not None and name in armed and value >= limit:
            return f"{name}: {value:.3f} (limit {limit})"
    return None


def calm(chosen: TriggerSettings, seen: Signals) -> list[str]:
    """Levels below half their threshold: armed again."""
    return [name for name in ALL if (limit := getattr(chosen, name)) is not None and getattr(seen, name) < limit / 2]


def quiet(hours: Sequence[str], now: float) -> bool:
    """Whether `now` lies in one of the spans `22:00-06:00` (UTC). Errors: BadInput."""
    moment = dt.datetime.fromtimestamp(now, dt.UTC)
    minute = 60 * moment.hour + moment.minute
    for span in hours:
        found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", span)
        if found is None:
            raise BadInput(f"improve.quiet has {span!r}", "spans like 22:00-06:00 (UTC)", "improve.quiet")
        a, b, c, d = map(int, found.groups())
        start, end = 60 * a + b, 60 * c + d
        if start <= minute < end if start <= end else (minute >= start or minute < end):
            return True
    return False


def over_budget(chosen: BudgetSettings, rounds: Sequence[tuple[float, float]], now: float) -> str | None:
    """`rounds`: (begun at, seconds of training) of earlier rounds. The reason to wait, or None."""
    today = sum(now - at < 86400 for at, _ in rounds)
    if chosen.rounds_per_day is not None and today >= chosen.rounds_per_day:
        return f"{today} rounds in 24 hours (improve.budget.rounds_per_day {chosen.rounds_per_day})"
    hours = sum(seconds for at, seconds in rounds if now - at < 7 * 86400) / 3600
    if chosen.train_hours_per_week is not None and hours >= chosen.train_hours_per_week:
        return f"{hours:.1f} hours of training in 7 days (improve.budget.train_hours_per_week {chosen.train_hours_per_week})"
    return None
