"""Limits: kept, missed, not measured, and limits that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyloop.bench.slo import Limit, judge, load_slo
from policyloop.errors import BadInput


def test_limits_at_their_edges() -> None:
    assert Limit(min=100).holds(100) and not Limit(min=100).holds(99.9)
    assert Limit(max=4).holds(4) and not Limit(max=4).holds(4.1)
    assert not Limit(min=1, max=2).holds(3)


def test_a_figure_that_was_not_measured_does_not_hold() -> None:
    lines, good = judge({"samples_per_s": Limit(min=100), "step_s": Limit(max=9)}, {"step_s": 8.0})
    assert not good
    assert lines == ["MISSED  samples_per_s: not measured, at least 100", "kept    step_s: 8, at most 9"]


def test_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text("samples_per_s: {min: 100}\n")
    assert load_slo(path) == {"samples_per_s": Limit(min=100)}


@pytest.mark.parametrize("text", ["samples_per_s: 100\n", "samples_per_s: {}\n", "samples_per_s: {least: 3}\n"])
def test_a_limit_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"samples_per_s|least"):
        load_slo(path)
