"""The table of guards: fires beyond a limit and only there; settings, metrics and actions name the same things."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from typing import Any

import pytest

from policyloop.errors import BadInput
from policyloop.monitor.guards import GUARDS, beyond
from policyloop.monitor.metrics import describe, prometheus_name
from policyloop.recipe import load
from policyloop.training import HealthSettings

HEALTH = HealthSettings()
BASE: dict[str, Any] = {"model": {"base_model_path": "tiny", "lora": None}}


def fired(metrics: dict[str, Any], health: HealthSettings = HEALTH) -> set[str]:
    return {name for name, _, _, _ in beyond(metrics, health)}


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_fires_beyond_its_limit_only(name: str) -> None:
    guard, limit = GUARDS[name], getattr(HEALTH, name)
    step, other = 0.01 if guard.beyond == "above" else -0.01, {guard.only: 0.0} if guard.only else {}
    assert name in fired({guard.metric: limit + step, **other})
    assert name not in fired({guard.metric: limit, **other})
    assert name not in fired({guard.metric: math.nan, **other}) | fired({guard.metric: None, **other}) | fired({})
    assert describe(guard.metric) is not None
    assert guard.means and guard.change


def test_settings_have_a_limit_for_every_guard_and_for_nothing_else() -> None:
    fields = {f.name for f in dataclasses.fields(HealthSettings)} - {"actions", "max_bad_steps", "max_skipped_steps"}
    assert fields == set(GUARDS)


def test_a_limit_can_be_moved_and_a_guard_switched_off() -> None:
    row = {"grad_norm": 1.2, "reward/mean": 0.0}
    assert fired(row) == {"grad_norm_warn"}
    assert fired(row, dataclasses.replace(HEALTH, grad_norm_warn=1.3)) == set()
    assert fired(row, dataclasses.replace(HEALTH, grad_norm_warn=None)) == set()


def test_large_norms_of_supervised_training_are_no_finding() -> None:
    assert fired({"grad_norm": 2.7, "entropy": 0.01, "sft/loss": 3.1}) == set()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"kl_alam": "stop"}, "names no guard"),
        ({"kl_alarm": "explode"}, "training.health.actions"),
        ({"kl_alarm": "raise_kl"}, "has no kl.coef"),
    ],
)
def test_actions_that_cannot_be_taken_are_refused(actions: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load({**BASE, "rl_strategy": {"type": "grpo", "kl": None}, "training": {"health": {"actions": actions}}})


def test_actions_that_can_be_taken_load() -> None:
    chosen = {"kl_alarm": "shrink_clip", "grad_norm_alarm": "lower_lr", "ref_kl_warn": "raise_kl"}
    assert load({**BASE, "training": {"health": {"actions": chosen}}}).training.health.actions == chosen


def test_star_rows_describe_names_from_the_config() -> None:
    row = describe("reward/part/format")
    assert row is not None and "raw value" in row.help
    assert describe("no/such/metric") is None
    assert prometheus_name("reward/mean") == "policyloop_train_reward_mean"


def test_monitor_imports_without_torch() -> None:
    code = "import sys, policyloop.monitor.health, policyloop.monitor.trackers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
