"""The one aggregation: what goes in raw comes out composed, shaped, counted and in place."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch
from scoring import equals, group, parts, said, scorer, values

from policyloop.algorithms.plain import group_advantages
from policyloop.errors import BadInput
from policyloop.monitor.metrics import describe
from policyloop.rewards import Correct, Format, Given, Math, RangeControl, RewardsSettings, Stop, TokenEfficiency
from policyloop.rewards.scorer import Scorer, columns_of
from policyloop.types import Completion, Group, Prompt


def advantages(groups: list[Group]) -> torch.Tensor:
    rewards = [math.nan if v is None else v for v in values(groups)]
    ids = [i for i, g in enumerate(groups) for _ in g.completions]
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(ids))


# --- unscored ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_b04_a_bad_reward_stays_in_its_row(bad: float) -> None:
    """Group rewards [1, bad, 0, 1]: the bad row is unscored, counted, and gets advantage 0; sample std over the other three."""
    groups = [group(["a", "b", "c", "d"])]
    scored, counters = scorer(lambda completions: [1.0, bad, 0.0, 1.0], groups, name="f").score(groups)
    assert values(scored) == [1.0, None, 0.0, 1.0]
    assert counters["reward/failed/f"] == counters["reward/unscored/f"] == 1
    assert scored[0].scores[1].info == {"unscored": ["f"]}
    want = torch.tensor([0.57735, 0.0, -1.15470, 0.57735], dtype=torch.float64)
    torch.testing.assert_close(advantages(scored).double(), want, atol=1e-4, rtol=0)


def test_a_row_with_one_failed_reward_is_unscored_as_a_whole() -> None:
    """Else a row would be paid less because a service was down."""

    def down(completions: list[str]) -> list[float]:
        return [1.0, math.nan]

    groups = [group(["5", "5"])]
    settings = RewardsSettings(terms=(Correct(), Given(function=down)))
    scored, counters = scorer(settings, groups).score(groups)
    assert values(scored) == [2.0, None]
    assert parts(scored, "correct") == [1.0, 1.0]
    assert (counters["reward/unscored/correct"], counters["reward/unscored/down"]) == (0, 1)


def test_gold_that_cannot_be_judged_is_unscored_not_wrong() -> None:
    groups = [group(["5", "6"], target=None), group(["5", "6"])]
    scored, counters = scorer(RewardsSettings(), groups).score(groups)
    assert values(scored) == [None, None, 1.0, 0.0]
    assert counters["reward/unscored/correct"] == 2


def test_not_applicable_is_no_fault() -> None:
    groups = [group(["5", "6", "7"])]
    settings = RewardsSettings(terms=(Correct(), Given(function=lambda completions: [None, None, 2.0], name="f")))
    scored, counters = scorer(settings, groups).score(groups)
    assert values(scored) == [1.0, 0.0, 2.0]
    assert math.isnan(scored[0].scores[0].components["f"])
    assert counters["reward/unscored/f"] == 0 and counters["reward/part/f"] == 2.0


def test_infinity_from_a_reward_of_any_kind() -> None:
    """What a reward object returns is checked too, not only what functions return."""
    groups = [group(["5", "6"])]
    s = scorer(RewardsSettings(), groups)

    class Broken:
        name = "correct"

        async def __call__(self, rows: Any) -> list[float | None]:
            return [math.inf, 0.0]

    s.rewards[0] = Broken()
    assert values(s.score(groups)[0]) == [None, 0.0]


# --- metric and length ------------------------------------------------------------------------------------------------------


def test_phantom_advantage() -> None:
    """An all-wrong group of different lengths gets no signal from the length term; without `only_if_correct` it would."""
    wrong = [group([said("6", 1), said("7", 9), said("8", 10)])]
    scored, _ = scorer(RewardsSettings(token_efficiency=TokenEfficiency()), wrong).score(wrong)
    assert values(scored) == [0.0, 0.0, 0.0] and advantages(scored).abs().max() == 0
    loose = RewardsSettings(token_efficiency=TokenEfficiency(only_if_correct=False))
    assert len(set(values(scorer(loose, wrong).score(wrong)[0]))) > 1


def test_the_raw_metric_is_kept_aside_from_all_shaping() -> None:
    groups = [group([said("5", 1), said("5", 10), said("6", 10)])]
    settings = RewardsSettings(
        terms=(Correct(weight=3.0),), token_efficiency=TokenEfficiency(), range_control=RangeControl(low=-2.0, high=2.0)
    )
    scored, counters = scorer(settings, groups, limit=10).score(groups)
    assert values(scored) == pytest.approx([2.0, 1.8, 0.0])
    assert [s.metric for s in scored[0].scores] == [1.0, 1.0, 0.0]
    assert parts(scored, "correct") == [1.0, 1.0, 0.0]
    assert counters["reward/unshaped_mean"] == pytest.approx(2.0)
    assert counters["reward/out_of_range_frac"] == pytest.approx(2 / 3)


def test_which_metric() -> None:
    """The task's verdict; the named reward; the first reward where nothing can be judged; never a mixture of scales."""

    def metrics(settings: RewardsSettings, groups: list[Group]) -> list[float | None]:
        return [s.metric for g in scorer(settings, groups).score(groups)[0] for s in g.scores]

    def length(completions: list[str]) -> list[float]:
        return [7.0 + len(c) for c in completions]

    settings = RewardsSettings(terms=(Given(function=length), Format(pattern=".")))
    judged, unjudged = group(["5", "66"]), group(["5", "66"], target=None)
    assert metrics(settings, [judged]) == [1.0, 0.0]
    assert metrics(settings, [unjudged]) == [8.0, 9.0]
    assert metrics(settings, [judged, unjudged]) == [1.0, 0.0, None, None]
    named = RewardsSettings(terms=settings.terms, metric="format")
    assert metrics(named, [judged]) == [1.0, 0.0] and metrics(named, [unjudged]) == [1.0, 0.0]
    with pytest.raises(BadInput, match=r"rewards.metric = form: allowed is one of length, format"):
        scorer(RewardsSettings(terms=settings.terms, metric="form"), [judged])


def test_each_completion_is_judged_once() -> None:
    judged: list[str] = []

    def grade(prompt: Prompt, completion: Completion) -> bool | None:
        judged.append(completion.text)
        return equals(prompt, completion)

    groups = [group(["5", "6"])]
    s = Scorer.from_settings(
        RewardsSettings(terms=(Format(), Correct())), grade=grade, prompts=[groups[0].prompt], max_new_tokens=9
    )
    assert [x.metric for x in s.score(groups)[0][0].scores] == [1.0, 0.0]
    assert judged == ["5", "6"]


def test_stop_is_added_so_a_cut_off_wrong_answer_never_gains() -> None:
    """A factor (OpenRLHF, NeMo) would raise -1 to -0.25 (`stop_properly_openrlhf`)."""
    groups = [group([said("6"), said("6", finish="length"), said("5", finish="length")])]
    minus = Given(function=lambda completions: [1.0 if c == "5" else -1.0 for c in completions], name="pm")
    scored, _ = scorer(RewardsSettings(terms=(minus, Stop(weight=0.25))), groups).score(groups)
    assert values(scored) == [-1.0, -1.25, 0.75]


def test_math_needs_stop() -> None:
    groups = [group([said("The answer is 5."), said("The answer is 5.", finish="length"), said("#### 6")])]
    for needs_stop, want in ((False, [1.0, 1.0, 0.0]), (True, [1.0, 0.0, 0.0])):
        scored, _ = scorer(RewardsSettings(terms=(Math(needs_stop=needs_stop),)), groups).score(groups)
        assert values(scored) == want
    assert values(scorer(RewardsSettings(terms=(Math(),)), groups).score([group(["5"], target=None)])[0]) == [None]


# --- counters ---------------------------------------------------------------------------------------------------------------


def test_shares_of_the_variance_add_up_and_lengths_correlate() -> None:
    groups = [group([said("5", 4), said("55", 6), said("6", 8), said("66", 2)])]
    settings = RewardsSettings(
        terms=(
            Given(function=lambda completions: [1.0, 0.0, 1.0, 1.0], name="a", weight=2.0),
            Given(function=lambda completions: [2.0, 3.0, 4.0, 1.0], name="b", weight=-0.5),
        )
    )
    _, counters = scorer(settings, groups).score(groups)
    assert counters["reward/share/a"] + counters["reward/share/b"] == pytest.approx(1.0)
    assert counters["reward/length_corr/b"] == pytest.approx(1.0)
    assert [counters[f"reward/part{k}/b"] for k in ("", "_min", "_max")] == [2.5, 1.0, 4.0]
    for name in counters:
        assert describe(name) is not None, name


def test_nothing_to_divide_by_is_left_out() -> None:
    groups = [group([said("5", 3), said("5", 3)])]
    _, counters = scorer(RewardsSettings(), groups).score(groups)
    assert counters["reward/part/correct"] == 1.0
    assert "reward/share/correct" not in counters and "reward/length_corr/correct" not in counters


# --- shape ------------------------------------------------------------------------------------------------------------------


def test_ragged_groups_keep_their_order_and_marks() -> None:
    groups = [group(["5"]), group([]), group(["6", "5", "7"])]
    marked = Group(groups[2].uid, groups[2].prompt, groups[2].completions, keep=(True, False, True))
    scored, _ = scorer(RewardsSettings(), groups).score([groups[0], groups[1], marked])
    assert [[s.value for s in g.scores] for g in scored] == [[1.0], [], [0.0, 1.0, 0.0]]
    assert scored[2].keep == (True, False, True)
    assert scorer(RewardsSettings(), groups).score([]) == ([], {})


def test_in_a_running_event_loop_and_awaited() -> None:
    groups = [group(["5", "6"])]
    s = scorer(RewardsSettings(), groups)

    async def cell() -> tuple[Any, Any]:
        return s.score(groups), await s.ascore(groups)

    (plain, _), (awaited, _) = asyncio.run(cell())
    assert values(plain) == values(awaited) == [1.0, 0.0]


def test_state_goes_through_the_checkpoint() -> None:
    groups = [group(["5", "6"])]
    settings = RewardsSettings(range_control=RangeControl(mode="running_z"))
    first = scorer(settings, groups)
    first.score(groups)
    second = scorer(settings, groups)
    second.load(first.state())
    assert values(second.score(groups)[0]) == values(first.score(groups)[0]) != [1.0, 0.0]


def test_names_are_unique() -> None:
    with pytest.raises(BadInput, match="two rewards are called format"):
        scorer(RewardsSettings(terms=(Format(), Format(pattern="answer"))), [])


def test_columns_are_those_of_all_rows() -> None:
    prompts = [Prompt.make("t", "q", None, {"level": 1}), Prompt.make("t", "q", "5", {"topic": "x"})]
    assert columns_of(prompts) == {"level", "topic", "answer", "target"}
    assert columns_of(prompts[:1]) == {"level"}
