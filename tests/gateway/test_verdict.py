"""Units, strata, verdicts; the statistics are those of stats.py, tested there against definitions."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np

from policyloop.gateway import ReleaseSettings, SignalSettings, SignalsSettings
from policyloop.gateway.verdict import Evidence, judge, merged, to_json
from policyloop.stats import Arm

ONE = SignalsSettings(errors=SignalSettings(margin=0.05), slow=None, long=None, feedback=None, verifier=None)
RULES = ReleaseSettings(signals=ONE)


def arms(stable: Arm, candidate: Arm, stratum: int = 1) -> dict[tuple[int, int, str], Arm]:
    return {(stratum, 1, "errors"): stable, (stratum, 2, "errors"): candidate}


def test_three_values() -> None:
    assert judge({}, 1, 2, RULES).outcome == "inconclusive"
    assert judge(arms(Arm(1000, 990), Arm(1000, 990)), 1, 2, RULES).outcome == "pass"
    assert judge(arms(Arm(1000, 990), Arm(100, 70)), 1, 2, RULES).outcome == "fail"
    assert judge(arms(Arm(1000, 990), Arm(10, 10)), 1, 2, RULES).outcome == "inconclusive"
    assert judge(arms(Arm(), Arm(100, 100)), 1, 2, RULES).outcome == "inconclusive"  # nothing to compare with


def test_a_veto_without_a_need_to_pass() -> None:
    rules = replace(RULES, signals=replace(ONE, feedback=SignalSettings(margin=0.05, needed=False)))
    good = arms(Arm(1000, 990), Arm(1000, 990))
    assert judge(good, 1, 2, rules).outcome == "pass"  # no feedback came, none was needed
    bad = good | {(1, 1, "feedback"): Arm(200, 180), (1, 2, "feedback"): Arm(200, 60)}
    verdict = judge(bad, 1, 2, rules)
    assert verdict.outcome == "fail" and "feedback: 0.300 of 200 units against 0.900 of 200" in verdict.reason()


def test_a_smaller_share_allows_a_margin_that_is_larger_in_proportion() -> None:
    small = arms(Arm(400, 380), Arm(40, 38))
    assert judge(small, 1, 2, RULES, share=0.05).outcome == "pass"
    assert judge(small, 1, 2, RULES, share=0.5).outcome == "inconclusive"


def test_a_busy_hour_in_one_stratum_is_no_difference_between_versions() -> None:
    """Simpson: both versions 0.95 in the first hour and 0.5 in the second, but the candidate had a larger share of the second."""
    mixed = arms(Arm(9500, 9025), Arm(500, 475), 1) | arms(Arm(5000, 2500), Arm(5000, 2500), 2)
    assert judge(mixed, 1, 2, RULES).outcome != "fail"
    pooled = arms(Arm(14500, 11525), Arm(5500, 2975))
    assert judge(pooled, 1, 2, RULES).outcome == "fail"


def test_a_session_is_one_unit_however_much_it_asks() -> None:
    evidence = Evidence(unit_outcomes=2, unit_idle_s=30)
    for value in (1.0, 0.0, 0.0, 0.0, 0.0):
        evidence.outcome(version=2, session="loud", stratum=1, signal="errors", value=value, now=0.0)
    evidence.outcome(version=2, session="quiet", stratum=1, signal="errors", value=1.0, now=0.0)
    assert evidence.arms() == {(1, 2, "errors"): Arm(1, 0.5)}
    evidence.close_idle(29.0)
    assert evidence.arms()[(1, 2, "errors")].n == 1
    evidence.close_idle(30.0)
    assert evidence.arms() == {(1, 2, "errors"): Arm(2, 1.5)}
    evidence.outcome(version=2, session="quiet", stratum=2, signal="errors", value=0.0, now=31.0)
    evidence.close_idle(99.0)
    assert evidence.arms() == {(1, 2, "errors"): Arm(2, 1.5)}  # not again in another stratum


def test_replicas_add_up() -> None:
    rows = to_json(arms(Arm(10, 9), Arm(4, 3)))
    assert merged([rows, rows, []]) == arms(Arm(20, 18), Arm(8, 6))


def test_error_rates_of_whole_releases_by_simulation() -> None:
    """The script whose full table is in docs/release.md, small: good candidates stay, much worse ones never arrive."""
    path = Path(__file__).parents[2] / "benchmarks" / "canary_statistics.py"
    spec = importlib.util.spec_from_file_location("canary_statistics", path)
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    rng = np.random.default_rng(1)
    good = [script.release(0.9, 0.9, 0.05, 10_000, 400, rng)[0] for _ in range(15)]
    bad = [script.release(0.9, 0.6, 0.05, 10_000, 400, rng)[0] for _ in range(15)]
    assert good.count("rolled back") <= 2  # alpha 0.05: more than 2 of 15 has probability 0.036 if the bound were tight
    assert good.count("promoted") >= 12 and set(bad) == {"rolled back"}
