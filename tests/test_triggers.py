"""When a round is due: thresholds, hysteresis, quiet hours, budget. Expected values by hand."""

from __future__ import annotations

import datetime as dt
import math

import pytest

from policyloop.errors import BadInput
from policyloop.triggers import ALL, BudgetSettings, Signals, TriggerSettings, calm, due, over_budget, quiet, signals

CHOSEN = TriggerSettings(evidence=100, reward_drop=0.1, drift=0.3)
HOUR = 3600.0


def at(hour: int, minute: int = 0) -> float:
    return dt.datetime(2026, 12, 1, hour, minute, tzinfo=dt.UTC).timestamp()


@pytest.mark.parametrize(
    ("seen", "armed", "reason"),
    [
        (Signals(100), ALL, "evidence"),
        (Signals(99), ALL, None),
        (Signals(0, reward_drop=0.1), ALL, "reward_drop"),
        (Signals(0, reward_drop=0.1), ("drift",), None),
        (Signals(0, drift=0.4), ALL, "drift"),
        (Signals(0, math.nan, math.nan), ALL, None),
    ],
)
def test_what_opens_a_round(seen: Signals, armed: tuple[str, ...], reason: str | None) -> None:
    found = due(CHOSEN, seen, armed)
    assert found is None if reason is None else found is not None and found.startswith(f"{reason}:")


def test_null_is_never() -> None:
    assert due(TriggerSettings(evidence=None, reward_drop=None, drift=None), Signals(10**6, 1.0, 1.0), ALL) is None


def test_a_level_is_calm_below_half_its_threshold() -> None:
    assert calm(CHOSEN, Signals(0, 0.04, 0.2)) == ["reward_drop"]
    assert calm(CHOSEN, Signals(0, math.nan, 0.1)) == ["drift"]


def test_signals_compare_the_last_window_with_before() -> None:
    now = 1_000_000.0
    rows = [{"at": now - 10 * 86400, "tokens": 10}] * 60 + [{"at": now - HOUR, "tokens": 10 + 20 * (i % 2)} for i in range(60)]
    found = signals(rows, [1.0] * 60 + [0.5] * 60, 7, CHOSEN, now)
    assert found == Signals(7, 0.5, 0.5)  # half of the new answers are longer than every old one
    few = signals(rows[:100], [1.0] * 100, 7, CHOSEN, now)
    assert math.isnan(few.reward_drop) and math.isnan(few.drift)


@pytest.mark.parametrize(
    ("span", "moment", "expected"),
    [
        *(("22:00-06:00", at(23), True), ("22:00-06:00", at(5, 59), True), ("22:00-06:00", at(6), False)),
        *(("08:00-12:30", at(12, 29), True), ("08:00-12:30", at(7), False)),
    ],
)
def test_quiet_hours(span: str, moment: float, expected: bool) -> None:
    assert quiet([span], moment) is expected


def test_a_span_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="25:00"):
        quiet(["25:00-06:00"], 0.0)


def test_the_budget_counts_rounds_of_a_day_and_hours_of_a_week() -> None:
    now, week = 10 * 86400.0, 7 * 86400.0
    assert over_budget(BudgetSettings(rounds_per_day=2), [(now - HOUR, 0), (now - 2 * 86400, 0)], now) is None
    assert "2 rounds" in str(over_budget(BudgetSettings(rounds_per_day=2), [(now - HOUR, 0), (now - 2 * HOUR, 0)], now))
    hours = BudgetSettings(rounds_per_day=None, train_hours_per_week=2.0)
    assert over_budget(hours, [(now - HOUR, HOUR), (now - week - 1, 9 * HOUR)], now) is None
    assert "2.0 hours" in str(over_budget(hours, [(now - HOUR, HOUR), (now - 2 * HOUR, HOUR)], now))
