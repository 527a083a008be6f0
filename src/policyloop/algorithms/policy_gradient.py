"""The composition: every policy-gradient algorithm is one value of `PolicyGradient`. What a run needs is derived from its parts.

    loss = Σ weight_NT · ( correction · surrogate(ratio, A) + kl.coef · KL - entropy.coef · H )

Example:
    >>> GSPO = replace(GRPO, ratio=SequenceRatio(), surrogate=Clip(low=3e-4, high=4e-4), weight=SequenceMean(), kl=None)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from policyloop.algorithms.loss import Loss, Metrics, Stat, token_stats
from policyloop.algorithms.objective import AllSum, alone
from policyloop.algorithms.parts.advantage import ADVANTAGES, FLAT, GAE, Advantage, GroupNorm, ReturnToGo, group_moments
from policyloop.algorithms.parts.correction import CORRECTIONS, Correction, log_weight
from policyloop.algorithms.parts.entropy import Entropy
from policyloop.algorithms.parts.filter import FILTERS, Filter, mark
from policyloop.algorithms.parts.kl import KL, estimate
from policyloop.algorithms.parts.ratio import RATIOS, Ratio, TokenRatio
from policyloop.algorithms.parts.schedule import plain, resolve
from policyloop.algorithms.parts.surrogate import SURROGATES, Clip, Surrogate
from policyloop.algorithms.parts.value import ValueLoss, explained_variance
from policyloop.algorithms.parts.weight import WEIGHTS, TokenMean, Weight
from policyloop.types import Batch, Group, Outputs, Progress, settings


@settings
class PolicyGradient:
    """group_size G completions a prompt; updates_per_rollout optimizer steps share one rollout; the parts say the rest.

    epochs_per_rollout: times the whole rollout is gone over. target_kl: no further step on this rollout once approx_kl/k3 of the last one
    is above 1.5 · target_kl. mask_truncated: completions cut off by the token limit are left out of loss and denominators (overlong
    filtering, DAPO). off_policy_limit: completions with a negative advantage whose mean engine - new log-prob is above it are left out of
    the policy term (DeepSeek-V3.2).
    """

    slots: ClassVar[Mapping[str, Mapping[str, type]]] = {
        "filter": FILTERS,
        "advantage": ADVANTAGES,
        "ratio": RATIOS,
        "correction": CORRECTIONS,
        "surrogate": SURROGATES,
        "weight": WEIGHTS,
    }

    group_size: int = 8
    updates_per_rollout: int = 1
    epochs_per_rollout: int = 1
    target_kl: float | None = None
    mask_truncated: bool = False
    off_policy_limit: float | None = None
    filter: Filter | None = None
    advantage: Advantage = field(default_factory=GroupNorm)
    ratio: Ratio = field(default_factory=TokenRatio)
    correction: Correction | None = None
    surrogate: Surrogate = field(default_factory=Clip)
    kl: KL | None = None
    entropy: Entropy | None = None
    weight: Weight = field(default_factory=TokenMean)
    value: ValueLoss | None = None

    @property
    def supervised(self) -> bool:
        return False

    @property
    def whole_groups(self) -> bool:
        return False

    @property
    def head(self) -> Literal["tokens", "scalar"]:
        return "tokens"

    @property
    def needs_reference(self) -> bool:
        return self.kl is not None and self.kl.coef != 0

    @property
    def needs_critic(self) -> bool:
        return self.value is not None

    def needs_old(self, updates: int) -> bool:
        """An old pass iff more than one update, KL in the reward, or a correction that drops rows or normalises."""
        in_reward = self.kl is not None and self.kl.where == "reward" and self.kl.coef != 0
        return (
            updates * self.epochs_per_rollout > 1 or in_reward or (self.correction is not None and self.correction.looks_at_rows)
        )

    def at(self, progress: Progress, controllers: Mapping[str, float] = {}) -> PolicyGradient:
        return resolve(self, progress, controllers)

    def mark(self, groups: Sequence[Group]) -> list[Group]:
        return mark(groups, self.filter)

    def prepare(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        if self.mask_truncated:
            batch.mask_NT = batch.mask_NT & batch.finished_N[:, None]
        penalty = self._penalty(batch)
        if isinstance(self.advantage, (GAE, ReturnToGo)):
            advantages = self.advantage.with_penalty(batch, penalty)
        else:
            shaped = batch if penalty is None else dataclasses.replace(batch, rewards_N=batch.rewards_N - penalty.sum(1).double())
            advantages = self.advantage(shaped)
        batch.advantages_NT = torch.where(batch.mask_NT, advantages, 0.0).detach().to(batch.rollout_logprobs_NT.dtype)
        return batch

    def _penalty(self, batch: Batch) -> Tensor | None:
        """coef · k1(old, ref) per token where the KL lives in the reward."""
        if self.kl is None or self.kl.where == "loss" or not self.kl.coef:
            return None
        assert batch.old_logprobs_NT is not None and batch.ref_logprobs_NT is not None
        return plain(self.kl.coef) * estimate(batch.old_logprobs_NT, batch.ref_logprobs_NT, batch.mask_NT, self.kl.estimator)

    def weigh(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        counted = batch.mask_NT if self.weight.count == "all" else batch.mask_NT & batch.keep_N[:, None]
        weight = self.weight(counted, batch.group_N, all_sum)
        live = batch.mask_NT & batch.keep_N[:, None]
        return dataclasses.replace(batch, counted_NT=counted, weight_NT=torch.where(live, weight, 0.0))

    def active(self, batch: Batch) -> Tensor:
        """Rows on which any term can be non-zero: a dead group still carries KL and entropy."""
        assert batch.weight_NT is not None and batch.advantages_NT is not None
        weighed_N = (batch.weight_NT != 0).any(1)
        in_loss = self.kl is not None and self.kl.where == "loss" and self.kl.coef != 0
        bonus = self.entropy is not None and self.entropy.coef != 0
        if in_loss or bonus:
            return weighed_N
        return weighed_N & ((batch.advantages_NT != 0) & (batch.weight_NT != 0)).any(1)

    def __call__(self, outputs: Outputs, batch: Batch) -> Loss:
        assert batch.weight_NT is not None and batch.advantages_NT is not None
        mask, weight = batch.mask_NT & (batch.weight_NT != 0), batch.weight_NT
        new = torch.where(mask, outputs.logprobs_NT, 0.0)
        old = new.detach() if batch.old_logprobs_NT is None else torch.where(mask, batch.old_logprobs_NT, 0.0)
        ratio = self.ratio(new, old, mask)
        policy = self.surrogate(ratio, batch.advantages_NT, new)
        if self.correction is not None:
            policy = policy * self.correction(old, batch.rollout_logprobs_NT, mask)
        if self.off_policy_limit is not None:
            policy = policy * self._near(new, batch, mask)
        terms = {"policy": weighted(policy, weight, mask)}
        if self.kl is not None and self.kl.where == "loss" and self.kl.coef:
            assert batch.ref_logprobs_NT is not None
            terms["kl"] = plain(self.kl.coef) * weighted(self.kl(new, batch.ref_logprobs_NT, mask), weight, mask)
        if self.entropy is not None and self.entropy.coef:
            terms["entropy"] = -plain(self.entropy.coef) * weighted(outputs.entropy_NT, weight, mask)
        if self.value is not None and outputs.values_NT is not None:
            terms["value"] = self.value.coef * self.value_loss(outputs.values_NT, batch).value
        total = torch.stack([t.double() for t in terms.values()]).sum()
        losses = {f"loss/{name}": Stat("sum", float(t.detach())) for name, t in terms.items()}
        with torch.no_grad():
            return Loss(total, {**losses, **self._metrics(outputs, batch, mask, new.detach(), old, ratio.detach())})

    def _near(self, new: Tensor, batch: Batch, mask: Tensor) -> Tensor:
        """(N, 1): 0 for a bad completion that the policy has moved away from since it was sampled, else 1."""
        assert batch.advantages_NT is not None and self.off_policy_limit is not None
        gone = -log_weight(new, batch.rollout_logprobs_NT, mask).sum(1) / mask.sum(1).clamp_min(1)
        bad = torch.where(mask, batch.advantages_NT, 0.0).sum(1) < 0
        return (~(bad & (gone > self.off_policy_limit))).to(new.dtype)[:, None]

    def value_loss(self, values_NT: Tensor, batch: Batch) -> Loss:
        """The critic's loss on rows that have a reward, under the same weights as the policy's."""
        assert self.value is not None and batch.weight_NT is not None
        assert batch.values_NT is not None and batch.returns_NT is not None
        mask = batch.mask_NT & (batch.weight_NT != 0) & batch.rewards_N.isfinite()[:, None]
        new, old, returns = (torch.where(mask, x, 0.0) for x in (values_NT, batch.values_NT, batch.returns_NT))
        loss = weighted(self.value(new, old, returns), batch.weight_NT, mask)
        with torch.no_grad():
            found: Metrics = {"loss/value": Stat("sum", float(loss))}
            if self.value.clip is not None and mask.any():
                bound = ((new - old).abs() > plain(self.value.clip)) & mask
                found["value/clip_frac"] = Stat.mean(float(bound.sum()), float(mask.sum()))
        return Loss(loss, found)

    def _metrics(self, outputs: Outputs, batch: Batch, mask: Tensor, new: Tensor, old: Tensor, ratio: Tensor) -> Metrics:
        """ALGORITHMS §2.6 over the rows that went through the update."""
        assert batch.advantages_NT is not None
        count = float(mask.sum())
        x = new - old
        found: Metrics = {
            **token_stats("ratio", ratio, mask, "mean std min max"),
            **token_stats("adv", batch.advantages_NT, mask, "mean std min max"),
            "tokens/trained": Stat("sum", count),
        }
        if count:
            found |= {
                "logratio_abs_max": Stat("max", float(x[mask].abs().max())),
                "approx_kl/k1": Stat.mean(float(-x[mask].double().sum()), count),
                "approx_kl/k3": Stat.mean(float((torch.expm1(x) - x)[mask].double().sum()), count),
                "entropy": Stat.mean(float(outputs.entropy_NT[mask].double().sum()), count),
                "adv/frac_zero": Stat.mean(float((batch.advantages_NT[mask] == 0).sum()), count),
            }
            for name, bound in self.surrogate.shares(ratio, batch.advantages_NT).items():
                found[name] = Stat.mean(float((bound & mask).sum()), count)
            found |= mismatch(old, batch.rollout_logprobs_NT, mask)
            if batch.ref_logprobs_NT is not None:
                for name in ("k1", "k3"):
                    kl = estimate(new, batch.ref_logprobs_NT, mask, name)
                    found[f"kl_ref/{name}"] = Stat.mean(float(kl[mask].double().sum()), count)
                found["kl_ref/per_token"] = found["kl_ref/k1"]
                found["kl_ref/per_sequence"] = Stat.mean(found["kl_ref/k1"].value, float(mask.any(1).sum()))
        return found

    def describe(self, batch: Batch) -> Metrics:
        """Figures of the whole rollout: rewards, groups, and what the filter kept."""
        kept = filter_metrics(batch) if self.filter is not None else {}
        return {**reward_metrics(batch), **kept, **(value_metrics(batch) if self.value is not None else {})}


def weighted(loss_NT: Tensor, weight_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """Σ weight · loss, with the loss replaced (not multiplied) where it does not count."""
    return (torch.where(mask_NT, loss_NT, 0.0).double() * weight_NT).sum()


def mismatch(old_NT: Tensor, rollout_NT: Tensor, mask_NT: Tensor) -> Metrics:
    """How far the engine's log-probs are from the trainer's on the same tokens."""
    use = mask_NT & rollout_NT.isfinite()
    if not use.any():
        return {}
    x, count = log_weight(old_NT, rollout_NT, mask_NT)[use].double(), float(use.sum())
    return {
        "mismatch/abs_logp_diff_mean": Stat.mean(float(x.abs().sum()), count),
        "mismatch/abs_logp_diff_max": Stat("max", float(x.abs().max())),
        "mismatch/k3": Stat.mean(float((torch.expm1(x) - x).sum()), count),
        "is/mean": Stat.mean(float(x.exp().sum()), count),
    }


def reward_metrics(batch: Batch) -> Metrics:
    """Rewards and groups of one rollout, unscored rows left out and counted."""
    scored = batch.rewards_N.isfinite()
    rewards = batch.rewards_N[scored].double()
    found: Metrics = {
        "reward/unscored": Stat("sum", float((~scored).sum())),
        "groups/count": Stat("sum", float(len(batch.group_N.unique()))),
    }
    if not len(rewards):
        return found
    _, std_N, count_N = group_moments(batch.rewards_N, scored, batch.group_N, 1)
    first = torch.tensor([n for n, g in enumerate(batch.group_N.tolist()) if g not in batch.group_N[:n].tolist()])
    std, size = std_N[first], count_N[first]
    groups = float(len(first))
    metric = batch.metric_N.nan_to_num(-1.0)
    worst_G = torch.stack([metric[batch.group_N == g].amin() for g in batch.group_N[first]])
    best_G = torch.stack([metric[batch.group_N == g].amax() for g in batch.group_N[first]])
    if bool((size >= 2).any()):  # groups of one have no spread to speak of: their algorithms compare across prompts
        found |= {
            "reward/within_group_std": Stat.mean(float(std.sum()), groups),
            "groups/zero_std_frac": Stat.mean(float((std < FLAT).sum()), groups),
            "groups/signal_frac": Stat.mean(float((std >= FLAT).sum()), groups),
            "groups/singleton_frac": Stat.mean(float((size < 2).sum()), groups),
        }
    return found | {
        "reward/mean": Stat.mean(float(rewards.sum()), len(rewards)),
        "reward/std": Stat("std", float(rewards.sum()), len(rewards), float((rewards**2).sum())),
        "reward/min": Stat("min", float(rewards.min())),
        "reward/max": Stat("max", float(rewards.max())),
        "groups/size_mean": Stat.mean(float(size.sum()), groups),
        "groups/all_correct_frac": Stat.mean(float((worst_G >= 1).sum()), groups),
        "groups/all_wrong_frac": Stat.mean(float((best_G == 0).sum()), groups),
        "token_efficiency": Stat.mean(1000 * float(rewards.sum()), float(batch.length_N[scored].sum())),
    }


def value_metrics(batch: Batch) -> Metrics:
    """How good the critic was before it learned from this rollout."""
    if batch.values_NT is None or batch.returns_NT is None:
        return {}
    mask = batch.mask_NT & batch.rewards_N.isfinite()[:, None]
    found = {
        **token_stats("value", batch.values_NT, mask, "mean min max"),
        **token_stats("returns", batch.returns_NT, mask, "mean std"),
    }
    values, returns = batch.values_NT[mask].double(), batch.returns_NT[mask].double()
    if len(values) > 1:
        found["value/error"] = Stat.mean(float(((values - returns) ** 2).sum()), float(len(values)))
        found["value/explained_variance"] = Stat("sum", explained_variance(values, returns))
    return found


def filter_metrics(batch: Batch) -> Metrics:
    """GFPO's diagnostics: how many, how long, how good the retained and the rejected are."""
    keep, scored = batch.keep_N, batch.rewards_N.isfinite()
    groups = batch.group_N.unique()
    _, std_N, count_N = group_moments(batch.rewards_N, keep & scored, batch.group_N, 1)
    flat = [bool((std_N[batch.group_N == g][0] < FLAT) | (count_N[batch.group_N == g][0] < 2)) for g in groups]
    found: Metrics = {
        "gfpo/k_mean": Stat.mean(float(keep.sum()), float(len(groups))),
        "gfpo/retained_zero_std_frac": Stat.mean(float(sum(flat)), float(len(groups))),
        "gfpo/too_small": Stat("sum", float(sum(not keep[batch.group_N == g].any() for g in groups))),
    }
    for name, rows in (("retained", keep), ("rejected", ~keep)):
        if rows.any():
            found[f"gfpo/length_{name}"] = Stat.mean(float(batch.length_N[rows].sum()), float(rows.sum()))
        if (rows & scored).any():
            found[f"gfpo/reward_{name}"] = Stat.mean(float(batch.rewards_N[rows & scored].sum()), float((rows & scored).sum()))
    return found
