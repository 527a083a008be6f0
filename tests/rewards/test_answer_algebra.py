"""Normal forms: equal exactly where the expressions are. The laws compare with plain arithmetic on fractions at random points."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyloop.rewards.answer_algebra import normal_form

EQUAL = [
    ("1/\\sqrt{2}", "\\frac{\\sqrt{2}}{2}"),
    ("\\sqrt{8}", "2\\sqrt2"),
    ("\\sqrt{\\frac{1}{2}}", "\\frac{\\sqrt 2}{2}"),
    ("\\sqrt{3}\\cdot\\sqrt{12}", "6"),
    ("(a-b)(a+b)", "a^2-b^2"),
    ("1-e^{-1}", "1-\\frac{1}{e}"),
    ("2.5π", "\\frac{5\\pi}{2}"),
    ("2 sqrt(3)", "2√3"),
    ("\\frac12x", "x/2"),
    ("\\left(x+1\\right)^2", "x^2+2x+1"),
    ("(1+i)^2", "2i"),
    ("\\frac{1}{i}", "-i"),
    ("2^{10}", "1024"),
    ("x-x", "0"),
]
DIFFERENT = [
    ("1+\\frac1e", "1-\\frac1e"),
    ("\\sqrt2", "1.41421356"),
    ("2x", "x^2"),
    ("\\pi", "3.14159"),
    ("xy", "x+y"),
    ("-x", "x"),
]
TOO_HARD = [
    "",
    "(",
    "x+",
    "\\sin x",
    "eggs",
    "1/(x+1)",
    "\\sqrt{x}",
    "\\sqrt{-1}",
    "x^y",
    "1/0",
    "1/(x-x)",
    "2 3",
    "2\\frac{1}{3}",
    "x_1",
    "9^{9^{9}}",
]


@pytest.mark.parametrize(("a", "b"), EQUAL)
def test_equal(a: str, b: str) -> None:
    assert normal_form(a) is not None and normal_form(a) == normal_form(b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_different(a: str, b: str) -> None:
    assert None not in (normal_form(a), normal_form(b)) and normal_form(a) != normal_form(b)


@pytest.mark.parametrize("text", TOO_HARD)
def test_outside_the_grammar(text: str) -> None:
    assert normal_form(text) is None


NAMES = "xyz"
Tree = int | str | tuple[str, "Tree", "Tree"]
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.integers(0, 9) | st.sampled_from(NAMES), lambda t: st.tuples(st.sampled_from("+-*"), t, t), max_leaves=6
)


def written(tree: Tree) -> str:
    return str(tree) if not isinstance(tree, tuple) else f"({written(tree[1])}{tree[0]}{written(tree[2])})"


def value(tree: Tree, point: dict[str, Fraction]) -> Fraction:
    if isinstance(tree, tuple):
        a, b = value(tree[1], point), value(tree[2], point)
        return a + b if tree[0] == "+" else a - b if tree[0] == "-" else a * b
    return point[tree] if isinstance(tree, str) else Fraction(tree)


# Degree 6 at most with coefficients below 10^7: equal at a point as large as this means equal everywhere.
POINT = {"x": Fraction(10**20), "y": Fraction(10**200), "z": Fraction(10**2000)}


@settings(max_examples=150, deadline=None)
@given(TREES, TREES)
def test_equal_forms_are_equal_values(a: Tree, b: Tree) -> None:
    same = value(a, POINT) == value(b, POINT)
    assert (normal_form(written(a)) == normal_form(written(b))) is same
    assert normal_form(f"{written(a)}-{written(b)}") == normal_form(f"-({written(b)}-{written(a)})")


@pytest.mark.parametrize(
    "text",
    [
        "(a+b+c+d)^{30}",
        "(" * 140 + "x" + ")" * 140,
        "\\sqrt{99999989}+" * 18 + "1",
        "\\frac" * 60,
        "9" * 300,
        "(x+y)^{30}(x+z)^{30}",
    ],
    ids=lambda t: t[:12],
)
def test_bounded(text: str) -> None:
    start = time.process_time()
    normal_form(text)
    assert time.process_time() - start < 2
