"""Evaluation with a scripted engine: counts, intervals, limits, records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from policyloop.engine import Request
from policyloop.errors import BadInput
from policyloop.evaluation.compare import compare
from policyloop.evaluation.evaluate import Evaluation, Item, evaluate
from policyloop.stats import wilson
from policyloop.types import Completion, Prompt, SamplingParams


@dataclass
class Answers:
    """An engine that says what it is told, in request order; ids of the length of the text."""

    texts: list[str]

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        n = sum(r.params.n for r in requests)
        assert n == len(self.texts)
        return [
            Completion((1,), (5,) * len(t), (0.0,) * len(t), "length" if t.endswith("…") else "stop", "v", t) for t in self.texts
        ]


class Renderer:
    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]:
        return (1,)


class Exact:
    name = "exact"
    correct_needs_stop = True
    notes: tuple[str, ...] = ()

    def train(self) -> list[Prompt]:
        return []

    def held_out(self, seed: int = 0) -> list[Prompt]:
        return []

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        return None if prompt.target is None else completion.text == prompt.target


PROMPTS = [Prompt.make("exact", f"q{i}", t, {"cluster": str(i % 2)}) for i, t in enumerate(["a", "bb", "ccc", None])]


def measured(texts: list[str], n: int = 1) -> Evaluation:
    return evaluate(
        Answers(texts), Renderer(), Exact(), PROMPTS, SamplingParams(max_new_tokens=9, temperature=0.0, n=n), version="v"
    )  # type: ignore[arg-type]


def test_figures_by_hand() -> None:
    found = measured(["a", "xx", "long wrong…", "?"])
    m = found.metrics()
    assert m["eval/accuracy"] == pytest.approx(1 / 3) and m["eval/n"] == 3 and m["eval/unscored"] == 1
    assert m["eval/length_mean"] == pytest.approx((1 + 2 + 11 + 1) / 4) and m["eval/truncated_frac"] == 0.25
    assert m["eval/tokens_per_correct"] == 15
    assert (m["eval/accuracy_low"], m["eval/accuracy_high"]) == pytest.approx(wilson(1, 3), abs=0.2)


def test_pass_at_k_over_samples() -> None:
    found = measured(["a", "x", "x", "x", "ccc", "ccc", "?", "?"], n=2)
    assert found.metrics()["eval/pass_at_2"] == pytest.approx((1 + 0 + 1) / 3)
    assert found.metrics()["eval/accuracy"] == pytest.approx(3 / 6)


def test_nothing_right_has_no_tokens_per_right_answer() -> None:
    assert math.isinf(measured(["x", "x", "x", "x"]).metrics()["eval/tokens_per_correct"])


def test_a_tighter_limit_is_read_off() -> None:
    """A greedy answer longer than the limit would have been cut off, hence wrong; shorter ones stay."""
    found = measured(["a", "bb", "ccc", "?"]).at_limit(2)
    assert [i.correct for i in found.items] == [True, True, False, None]
    assert found.items[2].truncated and found.items[2].length == 2 and found.conditions["decoding"]["max_new_tokens"] == 2


def test_saved_and_loaded(tmp_path: Path) -> None:
    found = measured(["a", "bb", "x", "?"])
    found.save(tmp_path / "e.json")
    back = Evaluation.load(tmp_path / "e.json")
    assert back.items == found.items and back.accuracy == found.accuracy
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadInput, match="not a saved evaluation"):
        Evaluation.load(tmp_path / "bad.json")


def test_no_held_out_prompts_is_an_error() -> None:
    with pytest.raises(BadInput, match="no held-out prompts"):
        evaluate(Answers([]), Renderer(), Exact(), [], SamplingParams(max_new_tokens=9), version="v")  # type: ignore[arg-type]


def evaluation(right: Sequence[bool], length: int = 10, tokens: int = 64) -> Evaluation:
    items = tuple(Item(f"p{i}", f"p{i}", 0, r, length + i % 3, False, "") for i, r in enumerate(right))
    return Evaluation("v", "t", {"task": "t", "decoding": {"max_new_tokens": tokens}}, items)


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
    assert any(verdict in line for line in result.lines())


def test_other_conditions_and_other_items_do_not_compare() -> None:
    with pytest.raises(BadInput, match="differ in decoding"):
        compare(evaluation([True]), evaluation([True], tokens=32))
    other = Evaluation("v", "t", {"task": "t", "decoding": {"max_new_tokens": 64}}, (Item("z", "z", 0, True, 1, False, ""),))
    with pytest.raises(BadInput, match="share no judged item"):
        compare(evaluation([True]), other)
