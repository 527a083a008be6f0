"""Laws that hold whatever the numbers: splits, shifts, permutations, padding, on-policy gradients, dead groups, and no number that is not finite."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policyloop.algorithms import ALGORITHMS, GFPO, GRPO, PolicyGradient, group_advantages, grpo_loss
from policyloop.algorithms.parts.advantage import GAE, GroupNorm, LeaveOneOut, RawReward, ReturnToGo
from policyloop.algorithms.parts.entropy import Entropy
from policyloop.algorithms.parts.filter import TopK
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.ratio import SequenceRatio, TokenRatio
from policyloop.algorithms.parts.surrogate import Cispo, Clip, Reinforce
from policyloop.algorithms.parts.value import ValueLoss
from policyloop.algorithms.parts.weight import Constant, PairMean, PromptMean, SequenceMean, SequenceSum, TokenMean
from policyloop.algorithms.plain import batch_of
from policyloop.types import Batch, Completion, Group, Outputs, Prompt, Score

PLAIN = replace(GRPO, kl=None, surrogate=Clip(low=0.2, high=0.2))
WEIGHTS = [TokenMean(), SequenceMean(), SequenceSum(), Constant(max_tokens=9), PromptMean(), TokenMean(count="retained")]


def random_batch(
    seed: int, sizes: tuple[int, ...] = (4, 4, 1, 3), width: int = 6, dtype: torch.dtype = torch.float64
) -> tuple[Batch, Tensor]:
    """Ragged groups with an empty row, an unscored row, a dead group and garbage at masked positions."""
    g = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    lengths = torch.randint(0, width + 1, (n,), generator=g)
    lengths[0], lengths[1] = width, 0
    mask = torch.arange(width)[None] < lengths[:, None]
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rewards = torch.rand(n, generator=g, dtype=torch.float64)
    rewards[group == 1] = 0.35
    rewards[2] = torch.nan
    logprobs = -torch.rand(n, width, generator=g, dtype=dtype) * 3
    old = logprobs + 0.3 * torch.randn(n, width, generator=g, dtype=dtype)
    ref = logprobs + 0.3 * torch.randn(n, width, generator=g, dtype=dtype)
    keep = torch.rand(n, generator=g) > 0.3
    batch = batch_of(
        mask,
        rewards,
        group,
        keep,
        old_logprobs_NT=old,
        ref_logprobs_NT=ref,
        values_NT=torch.randn(n, width, generator=g, dtype=dtype),
    )
    for x in (logprobs, old, ref):
        x[~mask] = torch.nan
    return batch, logprobs


def gradient(algorithm: Any, batch: Batch, logprobs: Tensor, parts: list[list[int]]) -> Tensor:
    """Σ over micro-batches, entropy as a function of the log-probs so that its term has a gradient too."""
    ready = algorithm.weigh(algorithm.prepare(replace_batch(batch)))
    leaf = logprobs.clone().requires_grad_()
    for rows in parts:
        part = leaf[rows]
        entropy = torch.where(ready.mask_NT[rows], part, 0.0) ** 2
        algorithm(Outputs(part, entropy), ready.rows(rows)).value.backward()
    assert leaf.grad is not None
    return leaf.grad


def replace_batch(batch: Batch) -> Batch:
    return batch.rows(list(range(len(batch))))


@pytest.mark.parametrize("weight", WEIGHTS, ids=lambda w: type(w).__name__ + w.count)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_any_split_gives_the_same_gradient(weight: Any, dtype: torch.dtype, tolerance: float) -> None:
    """E07, D12, law (a): 1, 2, 4 micro-batches of a ragged, padded, filtered batch with a dead group."""
    algorithm = replace(GRPO, weight=weight, kl=KL(coef=0.1), entropy=Entropy(coef=0.01))
    batch, logprobs = random_batch(0, dtype=dtype)
    n = len(batch)
    whole = gradient(algorithm, batch, logprobs, [list(range(n))])
    assert whole.abs().max() > 0 and torch.isfinite(whole).all()
    for k in (2, 4, n):
        parts = [list(range(i * n // k, (i + 1) * n // k)) for i in range(k)]
        torch.testing.assert_close(gradient(algorithm, batch, logprobs, parts), whole, atol=tolerance, rtol=tolerance)


def test_row_order_does_not_matter() -> None:
    batch, logprobs = random_batch(1)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(2)).tolist()
    whole = gradient(GRPO, batch, logprobs, [list(range(len(batch)))])
    mixed = gradient(GRPO, batch.rows(order), logprobs[order], [list(range(len(batch)))])
    torch.testing.assert_close(mixed, whole[order], atol=1e-12, rtol=1e-12)


def test_padding_may_hold_anything() -> None:
    """Law (b): garbage, NaN and infinity at masked positions change nothing."""
    batch, logprobs = random_batch(3)
    clean = gradient(GRPO, batch, torch.where(batch.mask_NT, logprobs, 0.0), [list(range(len(batch)))])
    for junk in (float("nan"), float("inf"), -float("inf"), 1e30):
        dirty = torch.where(batch.mask_NT, logprobs, junk)
        torch.testing.assert_close(gradient(GRPO, batch, dirty, [list(range(len(batch)))]), clean, atol=0, rtol=0)
    assert not clean[~batch.mask_NT].any()


@pytest.mark.parametrize("weight", WEIGHTS[:5], ids=lambda w: type(w).__name__)
@pytest.mark.parametrize("ratio", [TokenRatio(), SequenceRatio(token=True)], ids=["token", "sequence-token"])
@pytest.mark.parametrize("surrogate", [Clip(dual=3.0), Cispo()], ids=["clip", "cispo"])
def test_on_policy_gradient_is_reinforce(weight: Any, ratio: Any, surrogate: Any) -> None:
    """Laws (c) and (g): old = new gives -A · weight, whatever the surrogate."""
    batch, logprobs = random_batch(4)
    batch.old_logprobs_NT = None
    rows = [list(range(len(batch)))]
    base = replace(PLAIN, weight=weight)
    ours = gradient(replace(base, ratio=ratio, surrogate=surrogate), batch, logprobs, rows)
    torch.testing.assert_close(
        ours, gradient(replace(base, surrogate=Reinforce()), batch, logprobs, rows), atol=1e-12, rtol=1e-12
    )


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.floats(-100, 100), st.floats(0.1, 50))
@settings(max_examples=60, deadline=None)
def test_shift_and_scale_of_rewards(rewards: list[float], shift: float, scale: float) -> None:
    """Law (d): a constant added to a group changes nothing; a factor changes nothing once divided by the spread."""
    r, ids = torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.int64)
    exact = replace(PLAIN, advantage=GroupNorm(eps=0.0))
    a = group_advantages(r, ids, algorithm=exact)
    spread = float(r.std())
    if spread < 1e-3:
        return
    torch.testing.assert_close(group_advantages(r + shift, ids, algorithm=exact), a, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(group_advantages(r * scale, ids, algorithm=exact), a, atol=1e-7, rtol=1e-7)


def test_gfpo_with_everything_kept_is_grpo() -> None:
    """Law (e)."""
    batch, logprobs = random_batch(5)
    batch.keep_N = torch.ones_like(batch.keep_N)
    rows = [list(range(len(batch)))]
    gfpo = replace(GFPO, kl=GRPO.kl, surrogate=GRPO.surrogate, entropy=None)
    torch.testing.assert_close(gradient(gfpo, batch, logprobs, rows), gradient(GRPO, batch, logprobs, rows), atol=0, rtol=0)


def test_gspo_of_single_tokens_is_grpo() -> None:
    """Law (f)."""
    batch, logprobs = random_batch(6, width=1)
    rows = [list(range(len(batch)))]
    a = gradient(replace(PLAIN, ratio=SequenceRatio()), batch, logprobs, rows)
    torch.testing.assert_close(a, gradient(PLAIN, batch, logprobs, rows), atol=1e-12, rtol=1e-12)


def test_infinite_dual_clip_is_plain_clip() -> None:
    """Law (i)."""
    batch, logprobs = random_batch(7)
    rows = [list(range(len(batch)))]
    a = gradient(replace(PLAIN, surrogate=Clip(dual=1e30)), batch, logprobs, rows)
    torch.testing.assert_close(a, gradient(PLAIN, batch, logprobs, rows), atol=0, rtol=0)


def test_gradient_of_a_filtered_batch_is_that_of_the_retained_rows() -> None:
    """S1-52: the filter is not differentiable; with full-group statistics only the retained rows carry loss."""
    batch, logprobs = random_batch(8)
    grad = gradient(replace(PLAIN), batch, logprobs, [list(range(len(batch)))])
    assert not grad[~batch.keep_N].any() and grad[batch.keep_N].any()


def test_a_dead_group_carries_kl_and_entropy_only() -> None:
    batch, _ = random_batch(9)
    batch.keep_N = torch.ones_like(batch.keep_N)
    dead = (batch.group_N == 1) & (batch.length_N > 0)
    for algorithm, carried in (
        (PLAIN, False),
        (replace(PLAIN, kl=KL(coef=0.1)), True),
        (replace(PLAIN, entropy=Entropy(coef=0.1)), True),
    ):
        ready = algorithm.weigh(algorithm.prepare(replace_batch(batch)))
        assert bool(algorithm.active(ready)[dead].any()) == carried


def test_all_masked_batch_has_a_loss_of_zero_with_a_graph() -> None:
    """C04, E15."""
    mask = torch.zeros(3, 4, dtype=torch.bool)
    logprobs = torch.full((3, 4), torch.nan, requires_grad=True)
    loss = grpo_loss(logprobs, None, torch.ones(3), mask)
    loss.backward()
    assert float(loss.detach()) == 0 and logprobs.grad is not None and not logprobs.grad.any()


def test_truncated_rows_leave_the_denominator_too() -> None:
    """C03: A stopped with 2 tokens of loss 1, B was cut off after 8: the mean is 1.0, not 0.2."""
    mask = torch.arange(8)[None] < torch.tensor([[2], [8]])
    batch = batch_of(mask, torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.int64))
    batch.finished_N = torch.tensor([True, False])
    algorithm = replace(PLAIN, mask_truncated=True, surrogate=Reinforce(), advantage=RawReward())
    ready = algorithm.weigh(algorithm.prepare(batch))
    loss = algorithm(Outputs(-torch.ones(2, 8), torch.zeros(2, 8)), ready).value
    assert float(loss.detach()) == pytest.approx(1.0)


@pytest.mark.parametrize("rewards", [[0.1] * 8, [0.35] * 8, [0.0] * 4, [1.0] * 4, [1.0]])
def test_no_spread_is_exactly_no_signal(rewards: list[float]) -> None:
    """D01, D03."""
    for part in (
        GroupNorm(),
        GroupNorm(std="none"),
        GroupNorm(std="batch"),
        LeaveOneOut(),
        GroupNorm(baseline="retained", ddof=0, eps=0.0),
    ):
        r = torch.tensor(rewards, dtype=torch.float32)
        got = group_advantages(r, torch.zeros(len(r), dtype=torch.int64), algorithm=replace(PLAIN, advantage=part))
        assert got.tolist() == [0.0] * len(rewards)


def test_bad_rewards_are_left_out() -> None:
    """B04: [1, NaN, 0, 1] with population std -> 0.7071, 0, -1.4142, 0.7071; the same with inf."""
    for bad in (float("nan"), float("inf")):
        r = torch.tensor([1.0, bad, 0.0, 1.0], dtype=torch.float64)
        got = group_advantages(
            r, torch.zeros(4, dtype=torch.int64), algorithm=replace(PLAIN, advantage=GroupNorm(ddof=0, eps=0.0))
        )
        assert got.tolist() == pytest.approx([0.70711, 0.0, -1.41421, 0.70711], abs=1e-4)


def test_statistics_are_of_one_prompt() -> None:
    """D11: [[1, 0], [11, 10]] -> +1, -1, +1, -1."""
    got = group_advantages(
        torch.tensor([1.0, 0, 11, 10]), torch.tensor([0, 0, 1, 1]), algorithm=replace(PLAIN, advantage=GroupNorm(ddof=0, eps=0.0))
    )
    assert got.tolist() == pytest.approx([1, -1, 1, -1])


def test_the_odd_one_out_is_not_blown_up() -> None:
    """D02: [0.95, 0.35 x 7]: leave-one-out gives 0.6, nothing above 10."""
    got = group_advantages(
        torch.tensor([0.95] + [0.35] * 7), torch.zeros(8, dtype=torch.int64), algorithm=replace(PLAIN, advantage=LeaveOneOut())
    )
    assert float(got[0]) == pytest.approx(0.6, abs=1e-6) and got.abs().max() < 10


@pytest.mark.parametrize("x", [100.0, 20.0, 0.5, -100.0, -1e4])
def test_k3_stays_finite_forward_and_backward(x: float) -> None:
    """E03: reference minus policy."""
    for estimator in ("k2", "k3", "k3_st"):
        logprobs = torch.zeros(1, 1, requires_grad=True)
        kl = KL(estimator=estimator)(logprobs, torch.full((1, 1), x), torch.ones(1, 1, dtype=torch.bool)).sum()
        kl.backward()
        assert torch.isfinite(kl) and torch.isfinite(logprobs.grad).all()


def test_top_k_ties_and_too_few() -> None:
    """Equal metric: the shorter, then the lower index; fewer than two scored answers keep nothing."""

    def group(lengths: list[int], values: list[float | None]) -> Group:
        completions = tuple(Completion((1,), (5,) * n, (0.0,) * n, "stop", "r#0", "") for n in lengths)
        return Group("g", Prompt.make("t", "q"), completions, tuple(Score(v, metric=v) for v in values))

    assert TopK(k=2, metric="target_accuracy")(group([9, 3, 3, 5], [1, 1, 1, 1])) == (False, True, True, False)
    assert TopK(k=2)(group([9, 3, 3, 5], [None, 1, None, None])) == (False,) * 4
    assert TopK(k=2)(group([4, 4, 4], [0, 0, 0])) == (True, True, False)


def test_the_whole_product_of_parts_is_finite() -> None:
    """Singletons, empty rows, unscored rows, dead groups, garbage in padding: no value or gradient that is not finite."""
    advantages = [
        GroupNorm(),
        GroupNorm(std="batch"),
        GroupNorm(std="none", whiten=True),
        GroupNorm(baseline="retained", ddof=0, eps=0.0),
        LeaveOneOut(),
        RawReward(),
        GAE(),
        ReturnToGo(),
    ]
    ratios = [TokenRatio(), SequenceRatio(), SequenceRatio(token=True)]
    surrogates = [Clip(dual=3.0), Cispo(), Reinforce()]
    kls = [None, KL(coef=0.1), KL(coef=0.1, estimator="k1", where="reward")]
    for a, r, s, kl, w in itertools.product(advantages, ratios, surrogates, kls, [*WEIGHTS, PairMean()]):
        algorithm = replace(GRPO, advantage=a, ratio=r, surrogate=s, kl=kl, weight=w, entropy=Entropy(coef=0.01))
        batch, logprobs = random_batch(10)
        grad = gradient(algorithm, batch, logprobs, [list(range(len(batch)))])
        assert torch.isfinite(grad).all(), algorithm


def test_a_ppo_toy_and_a_pair_toy_pass_through_the_seam() -> None:
    """PPO: GAE, value loss, KL in the reward. Pairs: rows of a group together, the pair's weight is the sum of its rows'."""
    ppo = replace(
        GRPO,
        group_size=1,
        advantage=GAE(),
        kl=KL(coef=0.05, estimator="k1", where="reward"),
        value=ValueLoss(),
        updates_per_rollout=4,
    )
    assert ppo.needs_critic and ppo.needs_reference and ppo.needs_old(4)
    batch, logprobs = random_batch(11)
    ready = ppo.weigh(ppo.prepare(batch))
    values = torch.zeros_like(logprobs, requires_grad=True)
    ppo(Outputs(logprobs, torch.zeros_like(logprobs), values), ready).value.backward()
    assert values.grad is not None and values.grad[ready.mask_NT & ready.keep_N[:, None]].any()
    pairs = PairMean()(torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]]).bool(), torch.tensor([0, 0, 1, 1]), lambda x: x)
    assert pairs.sum(1).tolist() == pytest.approx([0.25] * 4) and float(pairs.sum()) == pytest.approx(1.0)


def test_needs_are_derived() -> None:
    assert isinstance(GRPO, PolicyGradient) and GRPO.needs_reference and not replace(GRPO, kl=None).needs_reference
    assert not GRPO.needs_old(1) and GRPO.needs_old(2)
    assert not replace(GRPO, kl=KL(coef=0.0)).needs_reference
    with pytest.raises(ValueError, match="k1 has no useful gradient"):
        KL(estimator="k1")


def test_no_branch_on_an_algorithms_name() -> None:
    names = "|".join(ALGORITHMS)
    source = Path(__file__).parents[2] / "src" / "policyloop"
    import re

    smell = re.compile(rf"(==|!=|\bin\b)\s*[\[({{]?\s*[\"'](?:{names}|ppo|dpo|gspo|dapo|cispo|rloo)[\"']", re.IGNORECASE)
    found = [
        f"{p}:{i}" for p in source.rglob("*.py") for i, line in enumerate(p.read_text().splitlines(), 1) if smell.search(line)
    ]
    assert found == []
