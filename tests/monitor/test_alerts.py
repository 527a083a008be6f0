"""Alerts: files equal to the tables, every alert fires and stays quiet where it says so (promtool), guards have thresholds."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from policyloop.monitor.alerts import ALERTS, guard_alerts, rule_tests, rules
from policyloop.monitor.guards import GUARDS
from policyloop.monitor.metrics import GPU, HOST, RUN, SERVING, describe, service_name
from policyloop.training import HealthSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("monitoring", ROOT / "scripts" / "monitoring.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_tables_say(script: ModuleType) -> None:
    for path, text in script.files().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is stale: python scripts/monitoring.py"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_every_alert_fires_and_stays_quiet_in_prometheus_own_checker(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules(script.alerts())))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(rule_tests(script.alerts(), "alerts.yaml")))
    for command in (["check", "rules", "alerts.yaml"], ["test", "rules", "test.yaml"]):
        done = subprocess.run(["promtool", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_a_rule_that_cannot_fire_is_found(tmp_path: Path) -> None:
    broken = rules({"GpuTemperatureHigh": ALERTS["GpuTemperatureHigh"]})
    broken["groups"][0]["rules"][0]["expr"] = "DCGM_FI_DEV_GPU_TEMP > 850"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(broken))
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump(rule_tests({"GpuTemperatureHigh": ALERTS["GpuTemperatureHigh"]}, "alerts.yaml"))
    )
    assert (
        subprocess.run(["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, timeout=60).returncode == 1
    )


def test_every_metric_an_alert_reads_is_one_that_something_writes() -> None:
    known = {service_name(n) for table in (SERVING, RUN, HOST) for n in table} | set(GPU)
    for name, alert in ALERTS.items():
        for series in alert.fires:
            metric = series.partition("{")[0].removesuffix("_bucket")
            assert metric in known | {"up"}, f"{name} reads {metric}"


def test_every_guard_of_a_run_is_an_alert_with_the_runs_threshold() -> None:
    made = guard_alerts(HealthSettings(grad_norm_alarm=3.0))
    assert len(made) == len(GUARDS)
    assert made["TrainGradNormAlarm"].expr == "policyloop_train_grad_norm > 3"
    assert all(describe(guard.metric) for guard in GUARDS.values())


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for name, alert in ALERTS.items():
        assert alert.means.endswith(".") and len(alert.do) > 20, name
