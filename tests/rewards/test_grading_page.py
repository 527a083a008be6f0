"""docs/grading.md does what it says: every example with a verdict, and every spelling with its value."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from policyloop.rewards.answer_value import read
from policyloop.rewards.math import grade

PAGE = (Path(__file__).parents[2] / "docs" / "grading.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\| `(.+)` \| `(.+)` \| (right|wrong|not judged) \|$", PAGE, re.MULTILINE)
SPELLINGS = re.findall(r"^\| (`.+`) \| (none|-?\d[\d/, ]*)\b.* \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("completion", "gold", "verdict"), EXAMPLES)
def test_example(completion: str, gold: str, verdict: str) -> None:
    assert grade(completion.replace("⏎", "\n"), gold) is {"right": True, "wrong": False, "not judged": None}[verdict]


@pytest.mark.parametrize(("written", "value"), SPELLINGS)
def test_spelling(written: str, value: str) -> None:
    texts = re.findall(r"`([^`]+)`", written)
    found = [read(text, in_math=True) for text in texts]
    wanted = [None if value == "none" else Fraction(v) for v in value.split(", ")]
    assert [None if v is None else v.number for v in found] == (wanted * len(texts))[: len(texts)]


def test_nothing_on_the_page_was_missed() -> None:
    assert len(EXAMPLES) + len(SPELLINGS) == sum(1 for line in PAGE.splitlines() if line.startswith("| `")) > 50
