"""Rewards on the form of an answer."""

from __future__ import annotations

import time

import pytest
from scoring import group, scorer, values

from policyloop.errors import BadInput
from policyloop.rewards import Format, RewardsSettings


def formed(text: str, pattern: str = "think", prefilled: bool = False) -> float | None:
    groups = [group([text])]
    settings = RewardsSettings(terms=(Format(pattern=pattern, prefilled=prefilled, weight=1.0),))
    return values(scorer(settings, groups).score(groups)[0])[0]


@pytest.mark.parametrize("prefilled", [False, True])
@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("First, 2 plus 2.\n</think>\nThe answer is 4.", 1.0),
        ("First, 2 plus 2. The answer is 4.", 0.0),
        ("First <think> 2 plus 2.\n</think>\nThe answer is 4.", 0.0),
        ("<think>a <think> b</think>\nThe answer is 4.", 0.0),
        ("a</think> b</think>\nThe answer is 4.", 0.0),
        ("First, 2 plus 2.\n</think>\n ", 0.0),
        ("", 0.0),
    ],
)
def test_b14_prefilled_think(text: str, want: float, prefilled: bool) -> None:
    assert formed(text, prefilled=prefilled) == want


def test_b14_a_written_tag_is_the_first_or_the_second() -> None:
    written = "<think>\n2 plus 2.\n</think>\nThe answer is 4."
    assert formed(written) == 1.0
    assert formed(written, prefilled=True) == 0.0


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("so <answer> x < 3 </answer>\n", 1.0),
        ("<answer></answer>", 0.0),
        ("<answer>5</answer> and more", 0.0),
        ("<answer>4</answer><answer>5</answer>", 0.0),
        ("</answer> <answer>5", 0.0),
        ("<answer>5", 0.0),
    ],
)
def test_answer_tags(text: str, want: float) -> None:
    assert formed(text, "answer") == want


def test_a_regular_expression_matches_the_whole_text_over_lines() -> None:
    assert formed("work\n#### 5", r".*#### -?\d+") == 1.0
    assert formed("work\n#### 5 apples", r".*#### -?\d+") == 0.0
    with pytest.raises(BadInput, match=r"reward pattern '\(' "):
        formed("", "(")


def test_long_texts_are_no_trouble() -> None:
    start = time.perf_counter()
    assert formed("<answer>" * 50_000 + "x" * 200_000, "answer") == 0.0
    assert formed("<think>" * 50_000 + "x" * 200_000, "think") == 0.0
    assert time.perf_counter() - start < 1
