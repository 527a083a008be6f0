"""The laws of ALGORITHMS as properties: any composition of parts, any ragged groups (singletons, empty rows, unscored rows, dead groups)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policyloop.algorithms import ALGORITHMS, CISPO, DAPO, GFPO, GRPO, GSPO, PPO, REINFORCE, PolicyGradient
from policyloop.algorithms.parts.advantage import GAE, GroupNorm, LeaveOneOut, ProcessNorm, RawReward, ReturnToGo
from policyloop.algorithms.parts.correction import ImportanceWeight, Rejection, SequenceMaskTis
from policyloop.algorithms.parts.entropy import Entropy
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.ratio import SequenceProductRatio, SequenceRatio, TokenRatio
from policyloop.algorithms.parts.surrogate import Cispo, Clip, Reinforce
from policyloop.algorithms.parts.value import ValueLoss
from policyloop.algorithms.parts.weight import WEIGHTS, Constant, PairMean, SequenceMean, TokenMean
from policyloop.algorithms.plain import batch_of
from policyloop.types import Batch, Outputs, Progress

GROUPED = [
    GroupNorm(),
    GroupNorm(std="batch"),
    GroupNorm(std="none", whiten=True),
    GroupNorm(baseline="retained", ddof=0, eps=0.0),
    LeaveOneOut(),
    ReturnToGo(baseline="group"),
    ReturnToGo(baseline="leave_one_out", whiten=False),
    ProcessNorm(),
]
ADVANTAGES = [
    *GROUPED,
    RawReward(),
    ReturnToGo(gamma=0.9),
    GAE(),
    GAE(gamma=0.9, whiten=False, whiten_rewards=True, bootstrap_truncated=True),
    GAE(lam_value=1.0, length_alpha=0.1),
]
RATIOS = [TokenRatio(), SequenceRatio(), SequenceRatio(token=True), SequenceProductRatio()]
SURROGATES = [Clip(), Clip(low=0.2, high=0.28, dual=3.0), Cispo(), Reinforce()]
CORRECTIONS = [
    None,
    ImportanceWeight(),
    ImportanceWeight(level="sequence", mode="mask"),
    Rejection(),
    SequenceMaskTis(low=0.5, high=2.0),
]
KLS = [
    None,
    KL(coef=0.1),
    KL(coef=0.1, estimator="k3_st"),
    KL(coef=0.1, estimator="k2"),
    KL(coef=0.1, estimator="k1", where="reward"),
]
ENTROPIES = [None, Entropy(coef=0.01)]

PARTS = st.builds(
    lambda a, r, s, c, k, e, w, count, cut, far: PolicyGradient(
        advantage=a,
        ratio=r,
        surrogate=s,
        correction=c,
        kl=k,
        entropy=e,
        weight=WEIGHTS[w](count=count),
        mask_truncated=cut,
        off_policy_limit=far,
        value=ValueLoss() if isinstance(a, GAE) else None,
    ),
    st.sampled_from(ADVANTAGES),
    st.sampled_from(RATIOS),
    st.sampled_from(SURROGATES),
    st.sampled_from(CORRECTIONS),
    st.sampled_from(KLS),
    st.sampled_from(ENTROPIES),
    st.sampled_from(sorted(set(WEIGHTS) - {"token_sum"})),
    st.sampled_from(["all", "retained"]),
    st.booleans(),
    st.sampled_from([None, 0.05]),
)
TABLE = st.sampled_from([a for a in ALGORITHMS.values() if isinstance(a, PolicyGradient)])
ANY = st.one_of(PARTS, TABLE)
MADE: dict[str, Any] = {"max_examples": 20, "deadline": None}


@st.composite
def rollouts(draw: st.DrawFn, full: bool = False, width: int | None = None) -> tuple[Batch, Tensor]:
    """A batch and its log-probs in float64. `full`: every row scored, kept, finished and not empty."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    g = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    n, t = sum(sizes), width or draw(st.integers(1, 5))
    length = torch.randint(1 if full else 0, t + 1, (n,), generator=g)
    mask = torch.arange(t)[None] < length[:, None]
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    scale = draw(st.sampled_from([1.0, 0.0, 1e-9, 1e3]))
    rewards = torch.randint(0, 3, (n,), generator=g).double() * scale
    if not full:
        rewards[torch.rand(n, generator=g) < 0.2] = torch.nan
    logprobs = -torch.rand(n, t, generator=g, dtype=torch.float64) * 4
    shift = draw(st.sampled_from([0.05, 0.5, 30.0]))
    near = [logprobs + shift * torch.randn(n, t, generator=g, dtype=torch.float64) for _ in range(3)]
    batch = batch_of(
        mask,
        rewards,
        group,
        None if full else torch.rand(n, generator=g) > 0.2,
        old_logprobs_NT=near[0],
        ref_logprobs_NT=near[1],
        values_NT=torch.randn(n, t, generator=g, dtype=torch.float64),
        after_N=torch.randn(n, generator=g, dtype=torch.float64),
        step_rewards_NT=torch.where(
            torch.rand(n, t, generator=g) > 0.5, torch.rand(n, t, generator=g, dtype=torch.float64), torch.nan
        ),
    )
    batch.rollout_logprobs_NT = torch.where(torch.rand(n, t, generator=g) > 0.1, near[2], torch.nan)
    if not full:
        batch.finished_N = torch.rand(n, generator=g) > 0.2
    return batch, logprobs


def ready(algorithm: Any, batch: Batch) -> tuple[PolicyGradient, Batch]:
    now = algorithm.at(Progress(), {})
    return now, now.weigh(now.prepare(batch.rows(list(range(len(batch))))))


def gradient(algorithm: Any, batch: Batch, logprobs: Tensor, parts: list[list[int]] | None = None) -> tuple[float, Tensor]:
    """Loss and gradient of one optimizer step, in micro-batches; the entropy is a function of the log-probs, so that it has a gradient too."""
    now, whole = ready(algorithm, batch)
    leaf, total = logprobs.clone().requires_grad_(), 0.0
    for rows in parts or [list(range(len(batch)))]:
        part = leaf[rows]
        entropy = torch.where(whole.mask_NT[rows], part, 0.0) ** 2
        values = (
            None
            if whole.values_NT is None or whole.returns_NT is None
            else whole.values_NT[rows] + 0.0 * part.detach().nan_to_num()
        )
        loss = now(Outputs(part, entropy, values), whole.rows(rows)).value
        loss.backward()
        total += float(loss.detach())
    assert leaf.grad is not None
    return total, leaf.grad


def close(a: tuple[float, Tensor], b: tuple[float, Tensor], tolerance: float = 1e-9) -> None:
    scale = max(1.0, float(a[1].abs().max()), abs(a[0]))
    assert a[0] == pytest.approx(b[0], abs=tolerance * scale, rel=tolerance)
    torch.testing.assert_close(a[1], b[1], atol=tolerance * scale, rtol=tolerance)


# --- no composition, whatever it is, gives a number that is not finite ------------------------------------------------------


@given(ANY, rollouts())
@settings(**MADE)
def test_everything_is_finite(algorithm: PolicyGradient, made: tuple[Batch, Tensor]) -> None:
    batch, logprobs = made
    loss, grad = gradient(algorithm, batch, logprobs)
    assert math.isfinite(loss) and torch.isfinite(grad).all()
    now, whole = ready(algorithm, batch)
    assert all(math.isfinite(s.result()) for s in now.describe(whole).values() if s.count)
    assert torch.isfinite(whole.weight_NT).all() and not grad[~whole.mask_NT].any()
    if now.value is not None:
        value = now.value_loss(whole.values_NT + 1.0, whole)
        assert math.isfinite(float(value.value))


# --- (a) permutation, ranks, micro-batches ----------------------------------------------------------------------------------


@given(ANY, rollouts(), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(**MADE)
def test_a_any_split_in_any_order_gives_the_same_gradient(
    algorithm: PolicyGradient, made: tuple[Batch, Tensor], pieces: int, random: Any
) -> None:
    batch, logprobs = made
    if algorithm.correction == ImportanceWeight(batch_norm=True):
        return
    whole = gradient(algorithm, batch, logprobs)
    order = list(range(len(batch)))
    random.shuffle(order)
    parts = [order[i::pieces] for i in range(pieces) if order[i::pieces]]
    close(gradient(algorithm, batch, logprobs, parts), whole)
    loss, grad = gradient(algorithm, batch.rows(order), logprobs[order])
    close((loss, grad), (whole[0], whole[1][order]))


@given(ANY, rollouts())
@settings(**MADE)
def test_a_ranks_that_see_their_own_rows_add_up_to_the_whole(algorithm: PolicyGradient, made: tuple[Batch, Tensor]) -> None:
    """Two ranks: advantages from the gathered rewards, weights from all-reduced counts (here: the sum over both halves)."""
    batch, _ = made
    now = algorithm.at(Progress(), {})
    whole = now.prepare(batch.rows(list(range(len(batch)))))
    groups = whole.group_N.unique().tolist()
    halves = [
        [n for n, g in enumerate(whole.group_N.tolist()) if (g in groups[: len(groups) // 2]) == first] for first in (True, False)
    ]
    halves = [h for h in halves if h]
    seen: list[list[Tensor]] = [[] for _ in halves]
    for i, rows in enumerate(halves):
        now.weigh(whole.rows(rows), lambda x, i=i: (seen[i].append(x), x)[1])
    total = [torch.stack(xs).sum(0) for xs in zip(*seen, strict=True)]
    weights = torch.zeros(whole.mask_NT.shape, dtype=torch.float64)
    for rows in halves:
        queue = iter(total)
        weights[rows] = now.weigh(whole.rows(rows), lambda _, queue=queue: next(queue)).weight_NT
    torch.testing.assert_close(weights, now.weigh(whole).weight_NT, atol=1e-12, rtol=1e-12)


# --- (b) padding ------------------------------------------------------------------------------------------------------------


@given(ANY, rollouts(), st.sampled_from([math.nan, math.inf, -math.inf, 1e30]), st.integers(0, 2))
@settings(**MADE)
def test_b_padding_may_hold_anything_and_any_width(
    algorithm: PolicyGradient, made: tuple[Batch, Tensor], junk: float, more: int
) -> None:
    batch, logprobs = made
    clean = gradient(algorithm, batch, logprobs)
    mask = batch.mask_NT

    def dirty(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.where(mask, x, junk), (0, more), value=junk)

    fields = ("old_logprobs_NT", "ref_logprobs_NT", "rollout_logprobs_NT", "values_NT", "step_rewards_NT")
    wide = replace(batch, **{f: dirty(getattr(batch, f)) for f in fields})
    wide.mask_NT = wide.counted_NT = torch.nn.functional.pad(mask, (0, more))
    loss, grad = gradient(algorithm, wide, dirty(logprobs))
    close((loss, grad[:, : mask.shape[1]]), clean)
    assert not grad[:, mask.shape[1] :].any()


# --- (c), (g) on policy -----------------------------------------------------------------------------------------------------


@given(PARTS, rollouts())
@settings(**MADE)
def test_c_on_policy_every_surrogate_is_reinforce(algorithm: PolicyGradient, made: tuple[Batch, Tensor]) -> None:
    """old = new: the gradient of each ratio and surrogate is -A · weight, spread over the row where the ratio is one per row."""
    batch, logprobs = made
    batch.old_logprobs_NT, batch.rollout_logprobs_NT = logprobs.clone(), logprobs.clone()
    plain = replace(algorithm, correction=None, off_policy_limit=None, kl=None, entropy=None)
    ours = gradient(plain, batch, logprobs)[1]
    _, whole = ready(plain, batch)
    direct = torch.where(whole.mask_NT, -whole.advantages_NT * whole.weight_NT, 0.0).to(ours.dtype)
    ratio = plain.ratio
    if isinstance(plain.surrogate, (Clip,)) and not isinstance(ratio, TokenRatio) and not getattr(ratio, "token", False):
        live = whole.mask_NT & (whole.weight_NT != 0)
        per_row = torch.where(live, direct, 0.0).sum(1, keepdim=True)
        share = live.sum(1, keepdim=True).clamp_min(1) if isinstance(ratio, SequenceRatio) else 1
        direct = torch.where(live, per_row / share, 0.0)
    torch.testing.assert_close(ours, direct, atol=1e-9, rtol=1e-9)


@given(rollouts())
@settings(**MADE)
def test_g_cispo_without_a_binding_cap_is_ppo_without_a_binding_clip(made: tuple[Batch, Tensor]) -> None:
    batch, logprobs = made
    batch.old_logprobs_NT = logprobs + 0.1 * torch.sign(batch.old_logprobs_NT - logprobs)
    ppo = replace(CISPO, surrogate=Clip(low=0.99, high=99.0))
    torch.testing.assert_close(gradient(CISPO, batch, logprobs)[1], gradient(ppo, batch, logprobs)[1], atol=1e-9, rtol=1e-9)


# --- (d) shift and scale of rewards -----------------------------------------------------------------------------------------


@given(st.sampled_from(GROUPED[:7]), rollouts(full=True), st.floats(-5, 5))
@settings(**MADE)
def test_d_a_constant_for_a_group_changes_nothing(advantage: Any, made: tuple[Batch, Tensor], shift: float) -> None:
    batch, logprobs = made
    batch.rewards_N = batch.rewards_N.clamp(-2, 2)
    algorithm = replace(GRPO, advantage=advantage, kl=None)
    before = gradient(algorithm, batch, logprobs)
    own = (
        batch.group_N.double() if getattr(advantage, "std", "") != "batch" else 0.0
    )  # the batch's spread knows all groups' levels
    moved = replace(batch, rewards_N=batch.rewards_N + shift * (1 + own))
    close(gradient(algorithm, moved, logprobs), before, 1e-5)


@given(rollouts(full=True), st.floats(0.5, 20))
@settings(**MADE)
def test_d_a_factor_changes_nothing_iff_divided_by_the_spread(made: tuple[Batch, Tensor], factor: float) -> None:
    batch, logprobs = made
    batch.rewards_N = batch.rewards_N.clamp(0, 2).round()
    scaled = replace(batch, rewards_N=batch.rewards_N * factor)
    for std in ("group", "batch"):
        exact = replace(GRPO, advantage=GroupNorm(std=std, eps=0.0), kl=None)
        close(gradient(exact, scaled, logprobs), gradient(exact, batch, logprobs))
    centred = replace(GRPO, advantage=GroupNorm(std="none"), kl=None, surrogate=Reinforce())
    one, other = gradient(centred, batch, logprobs), gradient(centred, scaled, logprobs)
    close(other, (one[0] * factor, one[1] * factor))


# --- (e), (f), (h), (i) special cases ---------------------------------------------------------------------------------------


@given(rollouts(full=True))
@settings(**MADE)
def test_e_gfpo_that_keeps_all_is_grpo(made: tuple[Batch, Tensor]) -> None:
    batch, logprobs = made
    for baseline in ("group", "retained"):
        gfpo = replace(GFPO, advantage=GroupNorm(baseline=baseline), surrogate=GRPO.surrogate, entropy=None)
        close(gradient(gfpo, batch, logprobs), gradient(GRPO, batch, logprobs))


@given(rollouts(width=1))
@settings(**MADE)
def test_f_gspo_of_single_tokens_is_grpo(made: tuple[Batch, Tensor]) -> None:
    batch, logprobs = made
    grpo = replace(GRPO, surrogate=GSPO.surrogate, kl=None, weight=SequenceMean(), ratio=TokenRatio(limit=10.0))
    close(gradient(GSPO, batch, logprobs), gradient(grpo, batch, logprobs))


@given(rollouts())
@settings(**MADE)
def test_h_dapo_without_its_changes_is_grpo_with_a_token_mean(made: tuple[Batch, Tensor]) -> None:
    batch, logprobs = made
    dapo = replace(DAPO, filter=None, surrogate=Clip(dual=3.0), weight=TokenMean(count="all"))
    close(gradient(dapo, batch, logprobs), gradient(replace(GRPO, kl=None), batch, logprobs))


@given(PARTS, rollouts())
@settings(**MADE)
def test_i_an_infinite_dual_clip_is_none(algorithm: PolicyGradient, made: tuple[Batch, Tensor]) -> None:
    batch, logprobs = made
    close(
        gradient(replace(algorithm, surrogate=Clip(dual=1e30)), batch, logprobs),
        gradient(replace(algorithm, surrogate=Clip()), batch, logprobs),
    )


# --- what advantages are not ------------------------------------------------------------------------------------------------


@given(ANY, rollouts())
@settings(**MADE)
def test_advantages_are_detached_and_unscored_rows_teach_nothing(algorithm: PolicyGradient, made: tuple[Batch, Tensor]) -> None:
    batch, _ = made
    batch.values_NT = batch.values_NT.clone().requires_grad_()
    now = algorithm.at(Progress(), {})
    done = now.prepare(batch)
    assert not done.advantages_NT.requires_grad
    if not isinstance(now.advantage, ProcessNorm):
        assert not done.advantages_NT[~batch.rewards_N.isfinite()].any()


@given(rollouts(full=True), st.sampled_from(GROUPED[:7]))
@settings(**MADE)
def test_a_singleton_and_a_dead_group_have_exactly_no_advantage(made: tuple[Batch, Tensor], advantage: Any) -> None:
    batch, _ = made
    batch.rewards_N = batch.group_N.double() * 0.35
    if not getattr(advantage, "whiten", False):
        assert not advantage(batch).any()


def test_phantom_advantage_needs_a_reward_that_asks_for_it() -> None:
    """All answers wrong, lengths 10 to 40 of 40: with only_if_correct the group is dead, without it the short answers are praised."""
    import numpy as np

    from policyloop.rewards import TokenEfficiency
    from policyloop.rewards.compose import apply_token_efficiency

    length = np.array([10, 20, 35, 40])
    for only, dead in ((True, True), (False, False)):
        shaped = apply_token_efficiency(np.zeros(4), np.zeros(4), length, 40, TokenEfficiency(only_if_correct=only))
        batch = batch_of(torch.ones(4, 1), torch.from_numpy(shaped), torch.zeros(4, dtype=torch.int64))
        assert bool((GRPO.advantage(batch) == 0).all()) == dead


def test_what_a_run_needs_is_derived() -> None:
    assert PPO.needs_critic and PPO.needs_reference and PPO.needs_old(4)
    assert (
        not GSPO.needs_reference
        and not GSPO.needs_critic
        and GSPO.needs_old(4)
        and not replace(GSPO, updates_per_rollout=1).needs_old(1)
    )
    assert replace(GSPO, epochs_per_rollout=2).needs_old(1) and REINFORCE.needs_old(1) and not DAPO.needs_reference
    assert isinstance(Constant(max_tokens=9), Constant) and PairMean().count == "all"
