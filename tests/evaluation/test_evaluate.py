"""Evaluation with an engine that says what it is told: counts, intervals, limits, records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from policyloop.engine import Request
from policyloop.errors import BadInput
from policyloop.evaluation import EvaluationSettings, tries_of
from policyloop.evaluation.evaluate import Evaluation, Item, evaluate, level_of
from policyloop.stats import share, wilson
from policyloop.types import Completion, Prompt, SamplingParams


@dataclass
class Answers:
    """An engine that says what it is told, in request order; as many tokens as characters; `…` at the end = cut off, `!` = aborted."""

    texts: list[str]
    calls: list[int] = field(default_factory=list)

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        n = sum(r.params.n for r in requests)
        said, self.texts = self.texts[:n], self.texts[n:]
        self.calls.append(len(requests))
        ends = {"…": "length", "!": "abort"}
        return [Completion((1,), (5,) * len(t), (0.0,) * len(t), ends.get(t[-1:], "stop"), "v", t) for t in said]  # type: ignore[arg-type]


class Renderer:
    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]:
        return (1, int((prompt.text or "q0")[1:]))


@dataclass
class Exact:
    correct_needs_stop: bool = True
    name: str = "exact"
    notes: tuple[str, ...] = ()

    def train(self) -> list[Prompt]:
        return []

    def held_out(self, seed: int = 0) -> list[Prompt]:
        return []

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        return None if prompt.target is None else completion.text == prompt.target


PROMPTS = [Prompt.make("exact", f"q{i}", t, {"cluster": str(i % 2)}) for i, t in enumerate(["a", "bb", "ccc", None])]


def measured(texts: list[str], n: int = 1, prompts: Sequence[Prompt] = PROMPTS, task: Exact | None = None) -> Evaluation:
    params = SamplingParams(max_new_tokens=20, temperature=0.0, n=n)
    return evaluate(Answers(texts), Renderer(), task or Exact(), prompts, params, version="v")  # type: ignore[arg-type]


# --- figures ----------------------------------------------------------------------------------------------------------------


def test_figures_by_hand() -> None:
    found = measured(["a", "xx", "long wrong…", "?"])
    m = found.metrics()
    assert m["eval/accuracy"] == pytest.approx(1 / 3) and m["eval/n"] == 3 and m["eval/unscored"] == 1
    assert m["eval/length_mean"] == pytest.approx((1 + 2 + 11 + 1) / 4) and m["eval/truncated_frac"] == 0.25
    assert m["eval/length_p50"] == 1.5 and m["eval/length_p95"] == pytest.approx(2 + 0.85 * 9)  # of 1 1 2 11, at 0.95 · 3
    assert m["eval/tokens_per_correct"] == 15 and m["eval/clusters"] == 2


def test_the_interval_knows_the_clusters() -> None:
    """Forty problems in four keys, all alike within a key: the evidence of four, not of forty."""
    prompts = [Prompt.make("exact", f"q{i}", "a", {"cluster": str(i // 10)}) for i in range(40)]
    found = measured(["a"] * 20 + ["b"] * 20, prompts=prompts).accuracy
    assert found == share([1.0] * 20 + [0.0] * 20, [i // 10 for i in range(40)])
    alone = wilson(20, 40)
    assert found.high - found.low > 2.5 * (alone[1] - alone[0])


def test_pass_at_k_over_samples() -> None:
    found = measured(["a", "x", "x", "x", "ccc", "ccc", "?", "?"], n=2)
    assert found.metrics()["eval/pass_at_2"] == found.pass_at(2).value == pytest.approx((1 + 0 + 1) / 3)
    assert found.metrics()["eval/accuracy"] == found.pass_at(1).value == pytest.approx(3 / 6)
    assert "pass@2 0.667" in found.sentence() and found.samples == 2
    assert tries_of(1) == [] and tries_of(4) == [2, 4] and tries_of(6) == [2, 4, 6]


def test_nothing_right_has_no_tokens_per_right_answer() -> None:
    assert math.isinf(measured(["x", "x", "x", "x"]).metrics()["eval/tokens_per_correct"])


def test_an_answer_the_engine_did_not_finish_is_unscored_not_wrong() -> None:
    found = measured(["a", "b!", "ccc", "?"])
    assert [i.correct for i in found.items] == [True, None, True, None] and found.accuracy.value == 1.0


def items(rows: Sequence[tuple[str, bool, int]], samples: int = 1) -> Evaluation:
    """(level, right, length) per item; with samples, so many items per prompt."""
    made = [
        Item(f"p{i // samples}", f"p{i // samples}", i % samples, right, length, False, "", level=level)
        for i, (level, right, length) in enumerate(rows)
    ]
    return Evaluation("v", "t", {}, tuple(made))


def test_length_and_correctness_within_a_difficulty() -> None:
    """Hard problems have long answers that are wrong, easy ones short answers that are right: pooled, length seems to hurt. Inside each
    difficulty it is the longer answer that is right."""
    easy = [("easy", False, 10), ("easy", True, 11), ("easy", True, 12), ("easy", True, 13)]
    hard = [("hard", False, 50), ("hard", False, 51), ("hard", False, 52), ("hard", True, 53)]
    found = items([*easy, *hard])
    assert found.length_by_level()["easy"] > 0.7 and found.length_by_level()["hard"] > 0.7
    assert found.length_correlation() == pytest.approx(sum(found.length_by_level().values()) / 2)
    pooled = items([("", right, length) for _, right, length in [*easy, *hard]])
    assert pooled.length_by_level()["all"] < 0


def test_difficulties_weigh_by_their_answers_and_constant_ones_say_nothing() -> None:
    rising = [("a", False, 1), ("a", False, 2), ("a", True, 3), ("a", True, 4)]
    falling = [("b", True, 1), ("b", False, 2)] * 4
    found = items([*rising, *falling, ("c", True, 1), ("c", True, 9), ("c", True, 5)])
    levels = found.length_by_level()
    assert math.isnan(levels["c"]) and levels["b"] == pytest.approx(-1)
    assert found.length_correlation() == pytest.approx((4 * levels["a"] + 8 * levels["b"]) / 12)
    assert math.isnan(items([("", True, 3)] * 5).length_correlation())


def test_many_numeric_levels_become_thirds_and_samples_stand_in_for_levels() -> None:
    by_third = items([(str(i), i % 2 == 0, i) for i in range(12)]).length_by_level()
    assert list(by_third) == ["up to 3.67", "above 3.67, up to 7.33", "above 7.33"]
    several = items([("", False, 1), ("", True, 2), ("", True, 3)] * 3, samples=3)
    assert set(several.length_by_level()) == {"answers to the same prompt"} and several.length_correlation() > 0.8


@pytest.mark.parametrize(
    ("meta", "level"),
    [
        ({"level": 3}, "3"),
        ({"difficulty": "hard"}, "hard"),
        ({"demonstration": "a\n\nb\n#### 3"}, "3"),
        ({}, ""),
        ({"level": {}}, ""),
    ],
)
def test_what_says_how_hard_a_prompt_is(meta: dict[str, object], level: str) -> None:
    assert level_of(Prompt.make("t", "q", "1", meta)) == level


# --- limits -----------------------------------------------------------------------------------------------------------------


def test_a_tighter_limit_is_read_off() -> None:
    """An answer longer than the limit would have been cut off, hence wrong where answers must stop; shorter ones stay."""
    found = measured(["a", "bb", "ccc", "?"]).at_limit(2)
    assert [i.correct for i in found.items] == [True, True, False, None]
    assert found.items[2].truncated and found.items[2].length == 2 and found.conditions["decoding"]["max_new_tokens"] == 2


def test_a_limit_that_cannot_be_read_off_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot be read off an evaluation at 20"):
        measured(["a", "bb", "ccc", "?"]).at_limit(21)
    with pytest.raises(BadInput, match="must stop"):
        measured(["a", "bb", "ccc", "?"], task=Exact(correct_needs_stop=False)).at_limit(2)


# --- records ----------------------------------------------------------------------------------------------------------------


def test_what_decides_the_figures_is_recorded() -> None:
    found = measured(["a", "bb", "x", "?"])
    assert found.conditions["task"] == "exact" and found.conditions["decoding"]["temperature"] == 0.0
    assert found.conditions["parser"]["needs_stop"] is True and found.conditions["parser"]["grader"].endswith("Exact")
    assert len({i.rendered for i in found.items}) == 4  # four prompts, four sequences of token ids
    assert found.items[0].rendered == measured(["x", "x", "x", "x"]).items[0].rendered and found.about["policyloop"]


def test_saved_and_loaded(tmp_path: Path) -> None:
    found = measured(["a", "bb", "\ud800x", "?"])
    found.save(tmp_path / "new" / "e.json")
    back = Evaluation.load(tmp_path / "new" / "e.json")
    assert back.items == found.items and back.accuracy == found.accuracy
    assert back.conditions == found.conditions and back.about == found.about
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(BadInput, match="not a saved evaluation"):
        Evaluation.load(tmp_path / "bad.json")


def test_chunks_change_nothing_and_report_progress() -> None:
    engine, heard = Answers(["a", "bb", "x", "?"]), list[tuple[int, int]]()
    params = SamplingParams(max_new_tokens=20, temperature=0.0)
    found = evaluate(
        engine,  # type: ignore[arg-type]
        Renderer(),
        Exact(),
        PROMPTS,
        params,
        version="v",
        chunk=3,
        on_progress=lambda done, of: heard.append((done, of)),
    )
    assert found.items == measured(["a", "bb", "x", "?"]).items
    assert engine.calls == [3, 1] and heard == [(3, 4), (4, 4)]


def test_no_held_out_prompts_is_an_error() -> None:
    with pytest.raises(BadInput, match="no held-out prompts"):
        measured([], prompts=[])


# --- settings ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": -1}, "evaluation.every = -1"),
        ({"prompts": 0}, "evaluation.prompts = 0"),
        ({"max_new_tokens": 0}, "evaluation.max_new_tokens = 0"),
        ({"metric": "accurracy"}, "evaluation.metric = accurracy: allowed is accuracy, "),
        ({"metric": "pass_at_4"}, "evaluation.metric = pass_at_4"),
        ({"samples": 4}, "4 times the same answer"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(BadInput, match=said.replace(".", r"\.")):
        EvaluationSettings(**given)  # type: ignore[arg-type]


def test_every_metric_that_may_decide_is_measured() -> None:
    from policyloop.evaluation import FIGURES

    measured_keys = measured(["a", "x", "x", "x", "ccc", "ccc", "?", "?"], n=2).metrics()
    assert all(f"eval/{name}" in measured_keys for name in (*FIGURES, "pass_at_2"))
    assert EvaluationSettings(metric="pass_at_2", samples=2, temperature=0.6).metric == "pass_at_2"
