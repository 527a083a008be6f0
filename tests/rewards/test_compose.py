"""Composition, range control and length terms against reference numbers and by their definitions."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policyloop.algorithms import GRPO
from policyloop.algorithms.parts.advantage import GroupNorm
from policyloop.algorithms.plain import group_advantages
from policyloop.errors import BadInput
from policyloop.rewards import Correct, Format, Math, RangeControl, RewardsSettings, TokenEfficiency
from policyloop.rewards.compose import Ranger, apply_token_efficiency, combine, length_penalty

VECTORS = Path(__file__).parent.parent / "vectors"
NAN = math.nan


def case(file: str, id: str) -> dict[str, Any]:
    return next(c for c in json.loads((VECTORS / f"{file}.json").read_text())["cases"] if c["id"] == id)


def array(x: Any) -> np.ndarray:
    return np.array(x["data"] if isinstance(x, dict) else x)


def composed(parts: Any, weights: Any, how: str = "sum", groups: Any = None, **more: Any) -> np.ndarray:
    settings = RewardsSettings(combine=how, **more)  # type: ignore[arg-type]
    groups = np.zeros(len(parts), dtype=np.int64) if groups is None else groups
    return combine(np.array(parts, dtype=float), np.array(weights, dtype=float), groups, settings)


# --- §14.1 composition ------------------------------------------------------------------------------------------------------


def test_normalize_then_sum_is_gdpo() -> None:
    c = case("multi_reward", "gdpo_official_trl")
    got = composed(
        array(c["inputs"]["rewards_per_func"]),
        array(c["params"]["reward_weights"]),
        "normalize_then_sum",
        array(c["inputs"]["group_ids"]),
    )
    np.testing.assert_allclose(got, array(c["expected"]["advantages_seq"]), **c["tolerance"])


def test_sum_then_the_groups_normalisation() -> None:
    c = case("multi_reward", "multi_trl_sum_then_normalize")
    ids = array(c["inputs"]["group_ids"])
    rewards = composed(array(c["inputs"]["rewards_per_func"]), array(c["params"]["reward_weights"]), "sum", ids)
    algorithm = dataclasses.replace(GRPO, advantage=GroupNorm(eps=c["params"]["eps"]))
    got = group_advantages(torch.tensor(rewards), torch.tensor(ids), algorithm=algorithm)
    np.testing.assert_allclose(got.numpy(), array(c["expected"]["advantages_seq"]), **c["tolerance"])


def test_what_does_not_apply_is_left_out() -> None:
    got = composed([[1, 1], [0, NAN], [NAN, NAN]], [1, 0.2])
    np.testing.assert_allclose(got, [1.2, 0.0, NAN])


def test_a_constant_reward_and_rounding_noise_add_nothing_when_normalised() -> None:
    noisy = [[1, 0.1 + 0.2], [0, 0.3], [1, 0.3], [0, 0.3]]
    plain = [[1, 0.3], [0, 0.3], [1, 0.3], [0, 0.3]]
    np.testing.assert_array_equal(composed(noisy, [1, 1], "normalize_then_sum"), composed(plain, [1, 1], "normalize_then_sum"))


def test_the_gate_comes_first() -> None:
    """Format gates correctness; a failed gate hides everything behind it. Swapped terms gate the other way round."""
    format_first = [[1, 1], [1, 0], [0, 1], [0, 0], [NAN, 1]]
    gate = {"gate_threshold": 0.5, "gate_fail": -1.0}
    np.testing.assert_allclose(composed(format_first, [0, 1], "conditional", **gate), [1, 0, -1, -1, NAN])
    np.testing.assert_allclose(composed(format_first, [0.5, 1], "conditional", **gate), [1.5, 0.5, -1, -1, NAN])
    correct_first = [row[::-1] for row in format_first[:4]]
    np.testing.assert_allclose(composed(correct_first, [0, 1], "conditional", **gate), [1, -1, 0, -1])


# --- §14.2 range control ----------------------------------------------------------------------------------------------------


def test_clip_and_tanh_keep_what_is_unscored() -> None:
    rewards = np.array([-3.0, 0.5, 7.0, NAN])
    np.testing.assert_allclose(Ranger(RangeControl(mode="clip", low=-1, high=2))(rewards), [-1, 0.5, 2, NAN])
    np.testing.assert_allclose(Ranger(RangeControl(mode="tanh"))(rewards), [math.tanh(-3), math.tanh(0.5), math.tanh(7), NAN])
    assert Ranger(None)(rewards) is rewards


def test_running_z_is_frozen_during_a_step_and_resumes() -> None:
    """Rewards 0, 2, 4: mean 2, standard deviation 2 (n - 1). They are used from the next step on."""
    ranger = Ranger(RangeControl(mode="running_z"))
    np.testing.assert_allclose(ranger(np.array([0.0, 2.0, NAN, 4.0])), [0, 2, NAN, 4])
    saved = json.loads(json.dumps(ranger.state()))
    np.testing.assert_allclose(ranger(np.array([6.0, 2.0])), [2, 0])
    resumed = Ranger(RangeControl(mode="running_z"))
    resumed.load(saved)
    np.testing.assert_allclose(resumed(np.array([6.0, 2.0])), [2, 0])
    assert resumed.state() == ranger.state()


def test_running_z_after_equal_rewards_does_not_explode() -> None:
    ranger = Ranger(RangeControl(mode="running_z"))
    ranger(np.zeros(8))
    np.testing.assert_allclose(ranger(np.array([0.0, 1.0])), [0, 1])


# --- §14.3 and §10: length --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ["overlong_trl", "overlong_openrlhf"])
def test_token_efficiency_is_dapos_soft_overlong_penalty(id: str) -> None:
    """L_cache = (1 - threshold) · L_max."""
    c = case("dapo_extras", id)
    lengths, limit = np.array(c["inputs"]["lengths"]), c["params"]["l_max"]
    threshold = 1 - c["params"]["l_cache"] / limit
    np.testing.assert_allclose(length_penalty(lengths, limit, threshold), array(c["expected"]["penalty"]), **c["tolerance"])
    settings = TokenEfficiency(length_ratio_threshold=threshold, weight=1.0, only_if_correct=False)
    got = apply_token_efficiency(np.zeros(len(lengths)), np.zeros(len(lengths)), lengths, limit, settings)
    np.testing.assert_allclose(got, array(c["expected"]["penalty"]), **c["tolerance"])


def test_penalty_starts_at_the_threshold_of_the_budget() -> None:
    """Threshold 0.7, weight 0.2, budget 100: 70 tokens nothing, 85 half, 100 and more all of it; wrong answers nothing."""
    lengths, right = np.array([70, 85, 100, 400]), np.ones(4)
    np.testing.assert_allclose(apply_token_efficiency(right, right, lengths, 100, TokenEfficiency()), [1, 0.9, 0.8, 0.8])
    wrong = np.zeros(4)
    np.testing.assert_array_equal(apply_token_efficiency(wrong, wrong, lengths, 100, TokenEfficiency()), wrong)
    own = TokenEfficiency(length_budget=200)
    np.testing.assert_allclose(apply_token_efficiency(right, right, lengths, 100, own), [1, 1, 1, 0.8])
    off = TokenEfficiency(length_ratio_threshold=1.0)
    np.testing.assert_array_equal(apply_token_efficiency(right, right, lengths, 100, off), right)


def test_drop_leaves_long_ones_unscored() -> None:
    drop = TokenEfficiency(action="drop", only_if_correct=False)
    got = apply_token_efficiency(np.ones(3), np.ones(3), np.array([70, 71, 100]), 100, drop)
    np.testing.assert_allclose(got, [1, NAN, NAN])


def test_a_weight_that_lets_a_short_wrong_answer_win_is_refused() -> None:
    def settings(weight: float, **more: Any) -> RewardsSettings:
        return RewardsSettings(token_efficiency=TokenEfficiency(weight=weight), **more)

    half = {"terms": (Math(weight=0.5), Format(weight=2.0))}
    with pytest.raises(BadInput, match=r"weight = 0\.5: allowed is below 0\.5, the gap between right and wrong"):
        settings(0.5, **half)
    with pytest.raises(BadInput, match=r"below 0\.3"):
        settings(0.4, range_control=RangeControl(low=0.0, high=0.3))
    for allowed in (settings(0.49, **half), settings(0.99)):
        gap, weight = allowed.gap(), allowed.token_efficiency.weight  # type: ignore[union-attr]
        long_right, short_wrong = apply_token_efficiency(
            np.array([gap, 0.0]), np.array([1.0, 0.0]), np.array([100, 1]), 100, TokenEfficiency(weight=weight)
        )
        assert long_right > short_wrong
    assert settings(5.0, terms=(Format(),)).gap() is None  # a function's scale is its own
    assert settings(1.5, terms=(Correct(weight=2.0),)).gap() == 2.0


@pytest.mark.parametrize("threshold", [0.0, 1.1, -0.7])
def test_thresholds_outside_their_range(threshold: float) -> None:
    with pytest.raises(BadInput, match="above 0, up to 1"):
        TokenEfficiency(length_ratio_threshold=threshold)
