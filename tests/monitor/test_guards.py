"""Guards fire beyond their limit and only there; the table and the settings name the same thresholds."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from policyloop.monitor.guards import GUARDS, check
from policyloop.monitor.metrics import describe, prometheus_name
from policyloop.training import HealthSettings

HEALTH = HealthSettings()


@pytest.mark.parametrize("name", GUARDS)
def test_every_guard_fires_beyond_its_limit_only(name: str) -> None:
    guard, limit = GUARDS[name], getattr(HEALTH, name)
    step = 0.01 if guard.beyond == "above" else -0.01
    assert name in {f.guard for f in check({guard.metric: limit + step}, HEALTH)}
    assert name not in {f.guard for f in check({guard.metric: limit}, HEALTH)}
    assert name not in {f.guard for f in check({guard.metric: float("nan")}, HEALTH)}
    assert describe(guard.metric) is not None


def test_thresholds_can_be_changed() -> None:
    assert check({"grad_norm": 1.2}, dataclasses.replace(HEALTH, grad_norm_warn=1.3)) == []


def test_a_finding_says_value_limit_and_key() -> None:
    (finding,) = check({"length/truncated_frac": 0.75}, HEALTH)
    assert (
        finding.sentence
        == "length/truncated_frac is 0.75, the limit is 0.5: most answers are cut off; raise rollout.max_new_tokens"
    )


def test_star_rows_describe_names_from_the_config() -> None:
    row = describe("reward/part/format")
    assert row is not None and "raw value" in row.help
    assert describe("no/such/metric") is None
    assert prometheus_name("reward/mean") == "policyloop_train_reward_mean"


def test_monitor_imports_without_torch() -> None:
    code = "import sys, policyloop.monitor.guards, policyloop.monitor.trackers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
