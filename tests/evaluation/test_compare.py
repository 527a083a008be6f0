"""Paired comparison: verdicts, what small samples and clusters may not decide, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from policyloop.errors import BadInput
from policyloop.evaluation.compare import Comparison, compare, excess_length
from policyloop.evaluation.evaluate import Evaluation, Item
from policyloop.stats import Z95


def evaluation(
    right: Sequence[bool | None], length: int | Sequence[int] = 10, tokens: int = 64, per_cluster: int = 1, version: str = "v"
) -> Evaluation:
    lengths = [length + i % 3 for i in range(len(right))] if isinstance(length, int) else length
    items = tuple(
        Item(f"p{i}", f"c{i // per_cluster}", 0, r, n, False, "") for i, (r, n) in enumerate(zip(right, lengths, strict=True))
    )
    return Evaluation(version, "t", {"task": "t", "decoding": {"max_new_tokens": tokens, "n": 1}}, items)


# --- verdicts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "length", "verdict", "code"),
    [
        ([False] * 60 + [True] * 40, [True] * 40 + [False] * 20 + [True] * 40, 10, "SHIP", 0),
        ([True] * 80 + [False] * 20, [False] * 40 + [True] * 40 + [False] * 20, 10, "HOLD", 3),
        ([True, False] * 20, [True, False] * 19 + [False, True], 10, "INCONCLUSIVE", 4),
        ([True] * 95 + [False] * 5, [True] * 95 + [False] * 5, 6, "SHIP", 0),
    ],
)
def test_verdicts(a: list[bool], b: list[bool], length: int, verdict: str, code: int) -> None:
    result = compare(evaluation(a), evaluation(b, length))
    assert (result.verdict, int(result.exit_code)) == (verdict, code)
    assert result.lines()[-1].startswith(f"{verdict}: ")


def test_the_numbers_of_a_comparison() -> None:
    result = compare(evaluation([False] * 60 + [True] * 40), evaluation([True] * 40 + [False] * 25 + [True] * 35))
    assert (result.n, result.clusters, result.only_a, result.only_b) == (100, 100, 5, 40)
    assert result.difference.value == pytest.approx(0.35) and result.accuracy_a.value == 0.4 and result.accuracy_b.value == 0.75
    assert result.p == result.mcnemar_p < 1e-6
    assert "only A right 5, only B right 40" in result.lines()[1]


def test_three_pairs_decide_nothing() -> None:
    """All three pairs go B's way: the bootstrap sees no spread at all, the exact test says p = 1/4."""
    result = compare(evaluation([False] * 3), evaluation([True] * 3))
    assert result.difference.low == 1.0 and result.p == 0.25 and result.verdict == "INCONCLUSIVE"


def test_answers_to_one_prompt_are_one_piece_of_evidence() -> None:
    """Thirty pairs in three clusters, all B's way: McNemar alone would be sure, three clusters are not."""
    result = compare(evaluation([False] * 30, per_cluster=10), evaluation([True] * 30, per_cluster=10))
    assert result.mcnemar_p < 1e-8 and result.p == pytest.approx(0.25) and result.verdict == "INCONCLUSIVE"
    assert "30 items in 3 clusters" in result.lines()[1] and "over clusters p = 0.25" in result.lines()[1]


def test_twenty_equal_pairs_do_not_prove_not_worse() -> None:
    """No disagreement in 20 pairs leaves room for 16 points (z² / (n + z²)), in 200 for 1.9."""
    few = compare(evaluation([True] * 20), evaluation([True] * 20, length=6))
    assert few.verdict == "INCONCLUSIVE" and few.score.low == pytest.approx(-(Z95**2) / (20 + Z95**2))
    assert "may be worse by more than 5%" in few.lines()[-1]
    many = compare(evaluation([True] * 200), evaluation([True] * 200, length=6))
    assert many.verdict == "SHIP" and "shorter by 4.0 tokens" in many.lines()[-1]
    assert compare(evaluation([True] * 200), evaluation([True] * 200, length=6), margin=0.01).verdict == "INCONCLUSIVE"


def test_alike_is_not_better() -> None:
    result = compare(evaluation([True, False] * 150), evaluation([True, False] * 150))
    assert result.verdict == "INCONCLUSIVE" and "not shown to be better or shorter" in result.lines()[-1]
    assert result.more_items is None and "would decide" not in result.lines()[-1]


def test_length_is_tested_over_clusters() -> None:
    """Ten like answers of one prompt are one length difference: of three clusters Wilcoxon cannot go below 2 / 2³."""
    lengths = [20] * 30
    result = compare(evaluation([True] * 30, lengths, per_cluster=10), evaluation([True] * 30, [12] * 30, per_cluster=10))
    assert result.wilcoxon_p == pytest.approx(0.25) and result.length.value == -8


def test_how_many_more_items_would_decide() -> None:
    """+2 of 40 with a half-width h: 80 % power asks for 40 · ((1.96 + 0.8416) / 1.96 · h / 0.05)² items in all."""
    a, b = [True, False] * 20, [True, False] * 18 + [False, True, True, True]
    result = compare(evaluation(a), evaluation(b))
    assert result.verdict == "INCONCLUSIVE" and result.difference.value == pytest.approx(0.025)
    half = max(result.difference.high - result.difference.low, result.score.high - result.score.low) / 2
    wanted = math.ceil(40 * ((Z95 + 0.8416212) / Z95 * half / result.difference.value) ** 2)
    assert result.more_items == wanted - 40 and f"about {result.more_items:,} more items" in result.lines()[-1]


def test_shorter_and_about_as_good_needs_fewer_items_than_better() -> None:
    """The other way to SHIP: with B clearly shorter it is enough to push the lower end above -5 points."""
    a, b = [True] * 30, [True] * 30
    result = compare(evaluation(a), evaluation(b, length=6))
    half = (result.score.high - result.score.low) / 2
    assert result.more_items == math.ceil(30 * ((Z95 + 0.8416212) / Z95 * half / 0.05) ** 2) - 30


def test_far_too_many_items_are_called_that() -> None:
    a = [True, False] * 300 + [True]
    b = [False, True] * 150 + [True, False] * 150 + [True]
    result = replace(compare(evaluation(a), evaluation(b)), more_items=2_000_000)
    assert "more than 100,000 further items" in result.lines()[-1]


# --- length -----------------------------------------------------------------------------------------------------------------


def test_excess_length_reduction() -> None:
    """Base 10 tokens, A 30, B 15: of the 20 that training added, 15 are gone."""
    base, a, b = (evaluation([True] * 50, [n] * 50) for n in (10, 30, 15))
    assert excess_length(base, a, b) == pytest.approx(0.75)
    result = compare(a, b, base=base)
    assert result.excess_length_reduction == pytest.approx(0.75)
    assert "excess length reduction: 75%" in "\n".join(result.lines())
    assert excess_length(a, base, b) is None and compare(a, b).excess_length_reduction is None


# --- what is refused, what is said --------------------------------------------------------------------------------------------


def test_other_conditions_do_not_compare_unless_meant() -> None:
    a, b = evaluation([True]), evaluation([True], tokens=32)
    with pytest.raises(BadInput, match=r"differ in max_new_tokens: 64 and 32.*--allow max_new_tokens"):
        compare(a, b)
    assert compare(a, b, allow=["max_new_tokens"]).n == 1
    graded = replace(b, conditions={**a.conditions, "parser": {"grader": "other"}})
    with pytest.raises(BadInput, match="differ in parser"):
        compare(a, graded)
    with pytest.raises(BadInput, match="--allow colour"):
        compare(a, a, allow=["colour"])


def test_another_template_does_not_pass_unseen() -> None:
    """The same prompt reached the two models as other token ids."""
    a, b = evaluation([True] * 4), evaluation([True] * 4)
    a = replace(a, items=tuple(replace(i, rendered="aa") for i in a.items))
    b = replace(b, items=tuple(replace(i, rendered="bb" if i.prompt_id == "p1" else "aa") for i in b.items))
    with pytest.raises(BadInput, match=r"differ in prompt: 1 of 4 reached the models as other token ids"):
        compare(a, b)
    assert any("other token ids" in note for note in compare(a, b, allow=["prompt"]).notes)


def test_items_are_matched_by_prompt_and_the_rest_is_said() -> None:
    a = evaluation([True] * 6)
    b = replace(evaluation([True] * 4 + [None]), items=tuple(reversed(evaluation([True] * 4 + [None]).items)))
    result = compare(a, b)
    assert result.n == 4 and "3 items are left out: only one side answered or judged them" in result.notes
    other = Evaluation("v", "t", a.conditions, (Item("z", "z", 0, True, 1, False, ""),))
    with pytest.raises(BadInput, match="share no judged item"):
        compare(a, other)


def test_equal_prompts_are_matched_in_order() -> None:
    def twice(right: Sequence[bool]) -> Evaluation:
        return replace(evaluation(right), items=tuple(Item("p", "p", 0, r, 5, False, "") for r in right))

    result = compare(twice([True, False, False]), twice([True, True, False]))
    assert (result.n, result.only_a, result.only_b) == (3, 0, 1)


def test_other_code_is_a_note_and_a_margin_must_be_a_share() -> None:
    a, b = (replace(evaluation([True] * 3), about={"policyloop": v}) for v in ("0.1.0", "0.2.0"))
    assert any("0.1.0, 0.2.0" in note for note in compare(a, b).notes)
    with pytest.raises(BadInput, match="margin 5"):
        compare(a, b, margin=5)


def test_saved_as_json(tmp_path: Path) -> None:
    result = compare(evaluation([True] * 30), evaluation([True] * 30, length=6))
    result.save(tmp_path / "c.json")
    tree = json.loads((tmp_path / "c.json").read_text())
    assert tree["verdict"] == result.verdict and tree["difference"]["low"] == result.difference.low
    assert set(tree) == set(Comparison.__dataclass_fields__)
