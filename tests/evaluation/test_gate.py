"""The gate on evaluations that are written down: each rule alone, and what they add up to."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from policyloop.errors import BadInput
from policyloop.evaluation import GateSettings
from policyloop.evaluation.distance import Distance
from policyloop.evaluation.evaluate import Evaluation, Item
from policyloop.evaluation.gate import agreement_of, gate
from policyloop.evaluation.suite import Contamination
from policyloop.stats import kappa

RULES = GateSettings(max_length_ratio=None, max_format_errors=None)


def made(version: str, right: range, n: int = 400, length: int = 10, truncated: int = 0, **about: float) -> Evaluation:
    """Items with an index in `right` are right; the first `truncated` are cut off."""
    items = tuple(Item(f"p{i}", f"p{i}", 0, i in right, length, i < truncated, "x") for i in range(n))
    return Evaluation(version, "t", {"task": "t", "decoding": {"max_new_tokens": 64, "n": 1}}, items, about)


STABLE = made("s@1", range(200))


def test_better_ships_worse_holds_alike_stays_open() -> None:
    better, worse, alike = (made("s@2", r) for r in (range(240), range(150), range(2, 203)))
    assert gate(STABLE, better, RULES).verdict == "SHIP"
    assert gate(STABLE, worse, RULES).verdict == "HOLD" and gate(STABLE, worse, RULES).exit_code == 3
    report = gate(STABLE, alike, RULES)
    assert report.verdict == "INCONCLUSIVE" and report.exit_code == 4 and report.more_items and report.more_items > 1000
    assert gate(STABLE, alike, replace(RULES, require="not_worse")).verdict == "SHIP"
    assert gate(STABLE, worse, replace(RULES, require="not_worse")).verdict == "HOLD"


def test_a_few_items_never_ship_however_clear() -> None:
    report = gate(made("a", range(10), n=40), made("b", range(40), n=40), RULES)
    assert report.verdict == "INCONCLUSIVE" and report.more_items == 60 and "about 60 more items" in report.reason


@pytest.mark.parametrize(("bar", "verdict"), [(0.55, "SHIP"), (0.65, "HOLD"), (0.60, "INCONCLUSIVE")])
def test_the_bar_is_for_the_truth_not_for_the_sample(bar: float, verdict: str) -> None:
    """240 of 400 = 0.6 with Wilson's interval [0.551, 0.647]."""
    report = gate(STABLE, made("s@2", range(240)), replace(RULES, min_accuracy=bar))
    (check,) = [c for c in report.checks if c.name == "min_accuracy"]
    assert check.verdict == verdict == report.verdict


def test_limits_hold_by_name() -> None:
    candidate = made("s@2", range(240), length=21, truncated=60, seconds=90.0, prompt_tokens=1000)
    stable = made("s@1", range(200), seconds=40.0, prompt_tokens=1000)
    rules = GateSettings(max_length_ratio=2.0, max_latency_ratio=2.0, max_cost_ratio=1.5, max_format_errors=0.1, max_kl=0.1)
    report = gate(stable, candidate, rules, distance=Distance(16, 100, 0.5, 0.1, 1.0, 0.2))
    said = {c.name: c for c in report.checks}
    assert {n for n, c in said.items() if c.verdict == "HOLD"} == {"length", "latency", "cost", "format errors", "KL to stable"}
    assert said["length"].sentence.startswith("2.1 of") and said["latency"].sentence.startswith("2.25 of")
    assert said["cost"].sentence.startswith(f"{(1000 + 4 * 8400) / (1000 + 4 * 4000):.3g} of")
    assert said["format errors"].sentence.startswith("0.15 of")
    with pytest.raises(BadInput, match="max_kl"):
        gate(stable, candidate, rules)
    with pytest.raises(BadInput, match="saved without seconds"):
        gate(STABLE, made("s@2", range(240)), replace(RULES, max_latency_ratio=1.0))


def test_a_gain_here_does_not_pay_for_a_loss_elsewhere() -> None:
    better = made("s@2", range(240))
    bad = {"manners": (STABLE, made("s@2", range(160)))}
    report = gate(STABLE, better, RULES, regressions=bad)
    assert report.verdict == "HOLD" and "regression manners" in {c.name for c in report.checks if c.verdict == "HOLD"}
    same = {"manners": (STABLE, made("s@2", range(200)))}
    assert gate(STABLE, better, RULES, regressions=same).verdict == "SHIP"
    unsure = {"manners": (made("s@1", range(20), n=40), made("s@2", range(3, 22), n=40))}
    assert gate(STABLE, better, RULES, regressions=unsure).verdict == "INCONCLUSIVE"


def test_the_phantom_improvement_of_a_contaminated_suite_is_refused() -> None:
    """60 items were trained on: the candidate has learned them by heart and nothing else."""
    phantom = made("s@2", range(260))
    assert gate(STABLE, phantom, RULES).verdict == "SHIP"  # what it looks like
    leaked = Contamination(400, tuple(f"p{i}" for i in range(200, 240)), tuple(f"p{i}" for i in range(240, 260)))
    report = gate(STABLE, phantom, RULES, contaminated=leaked)
    assert (
        report.verdict == "HOLD" and report.comparison is None and "40 of 400 items are training rows, 20 more" in report.reason
    )
    dropped = gate(STABLE, phantom, replace(RULES, contaminated="drop"), contaminated=leaked)
    assert dropped.verdict == "INCONCLUSIVE" and dropped.comparison is not None and dropped.comparison.difference.value == 0
    assert gate(STABLE, phantom, RULES, contaminated=Contamination(400)).verdict == "SHIP"


def test_a_judge_that_people_disagree_with_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"

    def labelled(agree: int, n: int = 100) -> str:
        """Half are right by people; the judge follows them on the first `agree`."""
        rows = [{"human": i % 2, "judge": i % 2 if i < agree else 1 - i % 2} for i in range(n)]
        file.write_text("".join(json.dumps(r) + "\n" for r in rows))
        found, labels = agreement_of(file)
        rules = replace(RULES, judge_labels=str(file))
        return gate(STABLE, made("s@2", range(240)), rules, agreement=found, labels=labels).verdict

    assert labelled(95) == "SHIP" and labelled(70) == "HOLD" and labelled(20, n=20) == "HOLD"
    file.write_text('{"human": 1}\n')
    with pytest.raises(BadInput, match="has no labels"):
        agreement_of(file)


def test_kappa_is_cohens() -> None:
    """Cohen's own arithmetic: 45 of 70 alike, chance 0.5 of each side's margins 40/30 and 35/35."""
    one = ["y"] * 25 + ["y"] * 15 + ["n"] * 10 + ["n"] * 20
    other = ["y"] * 25 + ["n"] * 15 + ["y"] * 10 + ["n"] * 20
    chance = (40 * 35 + 30 * 35) / 70**2
    found = kappa(one, other)
    assert found.value == pytest.approx((45 / 70 - chance) / (1 - chance)) and found.low < found.value < found.high
    assert kappa([1, 2], [1, 2]).value == 1 and math.isnan(kappa([1, 1], [1, 1]).value)


def test_the_report_is_plain_json(tmp_path: Path) -> None:
    report = gate(STABLE, made("s@2", range(240)), RULES, suite={"name": "wp", "sha256": "ab"})
    report.save(tmp_path / "r.json")
    tree = json.loads((tmp_path / "r.json").read_text())
    assert tree["verdict"] == "SHIP" and tree["suite"]["sha256"] == "ab" and tree["settings"]["min_items"] == 100
    assert tree["comparison"]["n"] == 400 and report.lines()[-1].startswith("SHIP: accuracy 0.500 to 0.600")
