"""Figures of held-out pairs, by hand."""

from __future__ import annotations

import math

import pytest

from policyloop.evaluation.pairs import PairEvaluation, calibration_error, kendall_tau_b


def test_accuracy_margin_and_their_sentence() -> None:
    found = PairEvaluation("r#1", ((2.0, 1.0), (0.0, 3.0), (1.0, 1.0), (5.0, 1.0)))
    assert found.metrics()["eval/accuracy"] == 0.625
    assert found.metrics()["eval/margin"] == 0.5
    assert found.metrics()["eval/accuracy_low"] < 0.625 < found.metrics()["eval/accuracy_high"]
    assert found.sentence().startswith("pairs 0.625 [") and "(n = 4)" in found.sentence()


def test_no_pairs() -> None:
    assert PairEvaluation("r#1", ()).metrics() == {} and PairEvaluation("r#1", ()).sentence() == "no held-out pairs"


def test_calibration_of_a_model_that_is_as_sure_as_it_is_right() -> None:
    """margin log 3 = 75 % sure, and three of four are right."""
    assert calibration_error([math.log(3)] * 3 + [-math.log(3)]) == pytest.approx(0.0)
    assert calibration_error([math.log(3)] * 4) == pytest.approx(0.25)
    assert calibration_error([1000.0, -1000.0]) == pytest.approx(0.5)


def test_kendall_tau_b_with_ties_by_hand() -> None:
    """Pairs of (1,2,2,3) and (1,2,3,3): 4 concordant, 0 discordant, one tie in each of two: 4 / sqrt(5 · 5)."""
    assert kendall_tau_b([1, 2, 2, 3], [1, 2, 3, 3]) == pytest.approx(0.8)
    assert math.isnan(kendall_tau_b([1, 1], [1, 2]))


def test_scores_of_the_rows_are_compared_where_there_are_some() -> None:
    found = PairEvaluation("r#1", ((2.0, 1.0), (4.0, 3.0)), ((8.0, 2.0), (9.0, 8.5)), ((3, 1), (9, 2)))
    assert found.metrics()["eval/kendall_tau_b"] == 1.0 and "tau-b 1.000" in found.sentence()
    assert -1 <= found.metrics()["eval/length_corr"] <= 1
