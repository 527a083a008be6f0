"""Rewards that run the answer's code against the row's tests."""

from __future__ import annotations

import pytest
from scoring import group, scorer, values

from policyloop.errors import BadInput
from policyloop.rewards import Code, RewardsSettings
from policyloop.rewards.code import code_of, wanted
from policyloop.rewards.sandbox import available

pytestmark = pytest.mark.skipif(available() is not None, reason=f"no sandbox here: {available()}")
GOOD, BAD = "Sure:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", "```python\ndef add(a, b):\n    return a\n```"
TESTS = ["assert add(2, 3) == 5", "assert add(4, 0) == 4"]


def settings(**fields: object) -> RewardsSettings:
    return RewardsSettings(terms=(Code(**fields),))  # type: ignore[arg-type]


def test_all_or_nothing_and_a_hanging_answer_costs_its_time_only() -> None:
    groups = [group([GOOD, BAD, "no code at all", "```python\nwhile True: pass\n```"], tests=TESTS)]
    found, counters = scorer(settings(timeout_s=1.0), groups).score(groups)
    assert values(found) == [1.0, 0.0, 0.0, 0.0]
    assert counters["reward/unscored/code"] == 0


def test_partial_pays_the_share_of_tests() -> None:
    groups = [group([GOOD, BAD], tests=TESTS)]
    assert values(scorer(settings(partial=True), groups).score(groups)[0]) == [1.0, 0.5]


def test_rows_without_tests_do_not_apply_and_a_missing_column_is_an_error() -> None:
    groups = [group([GOOD], tests=TESTS), group([GOOD], tests=None)]
    assert values(scorer(settings(), groups).score(groups)[0]) == [1.0, None]
    with pytest.raises(BadInput, match="needs column tests"):
        scorer(settings(), [group([GOOD])])


def test_where_the_code_is() -> None:
    assert code_of("```python\na\n```\nthen\n```\nb\n```") == "b\n"
    assert code_of("```python\na = 1") == "a = 1" and code_of("a = 1") == "a = 1"
    assert wanted("assert x") == ["assert x"] and wanted(None) == [] and wanted(["a", " "]) == ["a"]
