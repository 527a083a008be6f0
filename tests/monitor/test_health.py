"""Health over time: every figure from its definition, and when a guard speaks and acts."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from policyloop.monitor.guards import Finding
from policyloop.monitor.health import Watch
from policyloop.training import HealthSettings

HEALTH = HealthSettings()


def follow(rows: list[dict[str, Any]], health: HealthSettings = HEALTH, **about: Any) -> list[list[Finding]]:
    """What is said at each step."""
    watch = Watch(health, **about)
    return [[finding for finding, _ in watch.judge(row | watch.derive(row))] for row in rows]


def figures(rows: list[dict[str, Any]], **about: Any) -> dict[str, float]:
    """The `health/*` figures of the last row."""
    watch = Watch(HEALTH, **about)
    return [watch.derive(row) for row in rows][-1]


def rl(**values: float) -> dict[str, float]:
    return {"reward/mean": 0.5, "reward/std": 0.5, **{k.replace("__", "/"): v for k, v in values.items()}}


def test_update_success_is_the_share_of_finite_updates_so_far() -> None:
    rows = [{"update/ok": 3.0, "update/nan": 1.0}, {"update/ok": 4.0, "update/nan": 0.0}]
    assert figures(rows)["health/update_success"] == 7 / 8


def test_a_spike_is_measured_against_the_median_before_it() -> None:
    rows = [{"grad_norm": n} for n in (1.0, 2.0, 3.0, 4.0, 5.0, 30.0)]
    assert figures(rows)["health/grad_norm_spike"] == 10.0
    assert "health/grad_norm_spike" not in figures(rows[:5])


def test_drift_compares_five_steps_with_the_first_five() -> None:
    rows = [rl(entropy=1.0, length__mean=10.0)] * 5 + [rl(entropy=0.1, length__mean=40.0)] * 5
    assert figures(rows)["health/entropy_ratio"] == pytest.approx(0.1)
    assert figures(rows)["health/length_ratio"] == pytest.approx(4.0)
    assert "health/length_ratio" not in figures(rows[:4])


def test_a_reward_that_rises_with_the_outcome_is_learning_and_one_that_rises_alone_is_drift() -> None:
    start = [{"reward/mean": 0.5, "reward/std": 0.5, "metric/mean": 0.5}] * 5
    learnt = [*start, *[{"reward/mean": 1.0, "reward/std": 0.0, "metric/mean": 1.0}] * 5]
    gamed = [*start, *[{"reward/mean": 2.0, "reward/std": 0.0, "metric/mean": 0.5}] * 5]
    assert figures(learnt)["health/reward_drift"] == pytest.approx(0.0)
    assert figures(gamed)["health/reward_drift"] == pytest.approx(1.5 / 0.5)
    assert [f.guard for f in follow([*gamed, gamed[-1], gamed[-1]])[-1]] == [] and "reward_drift_warn" in {
        f.guard for said in follow([*gamed, *[gamed[-1]] * 3]) for f in said
    }


def test_dominance_and_length_are_weighed_by_the_share_of_the_reward() -> None:
    row = {
        "reward/mean": 1.0,
        "reward/share/a": 0.9,
        "reward/share/b": 0.1,
        "reward/length_corr/a": -1.0,
        "reward/length_corr/b": 0.0,
    }
    assert figures([row])["health/reward_dominance"] == pytest.approx(0.9)
    assert figures([row])["health/length_reward"] == pytest.approx(0.9)
    assert figures([{"reward/unscored": 2.0, "groups/count": 2.0, "groups/size_mean": 3.0}])["health/unscored_share"] == 0.25


def test_a_guard_waits_for_its_steps_in_a_row_and_speaks_once() -> None:
    said = follow([rl(grad_norm=n) for n in (1.2, 1.2, 0.5, 1.2, 1.2, 1.2, 1.2, 1.2, 0.5, 1.2, 1.2, 1.2)])
    assert [[f.guard for f in findings] for findings in said] == [
        [],
        [],
        [],
        [],
        [],
        ["grad_norm_warn"],
        *[[]] * 5,
        ["grad_norm_warn"],
    ]


def test_an_action_is_taken_at_once_and_again_only_after_a_while() -> None:
    health = dataclasses.replace(HEALTH, actions={"kl_alarm": "lower_lr"})
    said = follow([{"approx_kl/k3": 0.5}] * 8, health)
    assert [[f.action for f in findings] for findings in said] == [["lower_lr"], [], [], [], [], ["lower_lr"], [], []]


def accuracy(*values: float) -> list[dict[str, float]]:
    """Evaluations at every second step."""
    rows: list[dict[str, float]] = []
    for value in values:
        rows += [{"step": 0}, {"eval/accuracy": value, "eval/accuracy_low": value - 0.1, "eval/accuracy_high": value + 0.1}]
    return rows


START = {"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6}


@pytest.mark.parametrize(
    ("values", "actions"),
    [
        ((0.45, 0.41), []),  # below, within the interval
        ((0.39,), ["warn"]),
        ((0.39, 0.38), ["warn", "restore"]),
        ((0.39, 0.45, 0.39), ["warn", "warn"]),  # it recovered in between
        ((0.9, 0.8, 0.7), []),  # two falls in a row
        ((0.9, 0.8, 0.7, 0.6), ["warn"]),
        ((0.9, 0.8, 0.7, 0.6, 0.55), ["warn", "restore"]),
    ],
)
def test_held_out_results_warn_and_then_end_the_run(values: tuple[float, ...], actions: list[str]) -> None:
    assert [f.action for findings in follow(accuracy(*values), start=START) for f in findings] == actions


def test_where_lower_is_better_the_other_end_counts() -> None:
    start = {"loss": 1.0, "loss_low": 0.9, "loss_high": 1.1}
    found = figures([{"eval/loss": 1.3}], metric="loss", higher=False, start=start)
    assert found["health/below_start"] == pytest.approx(0.2)


def test_a_watch_that_is_shown_the_rows_so_far_goes_on_as_if_nothing_had_been() -> None:
    rows = [rl(grad_norm=1.2, entropy=0.5, update__ok=1.0, eval__accuracy=0.5 - 0.01 * n) for n in range(12)]
    whole = [w | r for w, r in zip(follow_figures(rows), rows, strict=True)]
    watch = Watch(HEALTH)
    for row in whole[:6]:
        watch.derive(row)
        watch.judge(row)
    rest = [watch.derive(row) for row in rows[6:]]
    assert rest == follow_figures(rows)[6:]


def follow_figures(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    watch = Watch(HEALTH)
    return [watch.derive(row) for row in rows]
