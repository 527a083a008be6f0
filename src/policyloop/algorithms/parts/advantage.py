"""Advantages: Batch -> advantages_NT, detached, over whole groups (never over a rank's or a micro-batch's share of one).

Unscored rows (NaN) are left out of every statistic and get 0; a group with fewer than two scored rows gets 0; equal rewards give exactly 0.

Example (group, rewards [1, 0, 0, 1]): mean 0.5, std 0.57735 -> [+0.866, -0.866, -0.866, +0.866].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from policyloop.algorithms.parts.schedule import Number, plain
from policyloop.types import Batch, settings

FLAT = 1e-8  # a spread below this is rounding: dividing by it would make a signal of noise (ALGORITHMS §19)


def groups_of(group_N: Tensor) -> tuple[int, Tensor]:
    """Number of groups and each row's group as 0..n-1."""
    values, index_N = group_N.unique(return_inverse=True)
    return len(values), index_N


def group_moments(x_N: Tensor, use_N: Tensor, group_N: Tensor, ddof: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per row: mean, standard deviation and count of `x` over the usable rows of its group. Two passes: never negative."""
    n, index = groups_of(group_N)
    x = torch.where(use_N, x_N, 0.0).double()
    count = torch.zeros(n, dtype=torch.float64).index_add_(0, index, use_N.double())
    mean = torch.zeros(n, dtype=torch.float64).index_add_(0, index, x) / count.clamp_min(1)
    deviation = torch.where(use_N, x - mean[index], 0.0)
    square = torch.zeros(n, dtype=torch.float64).index_add_(0, index, deviation**2)
    std = (square / (count - ddof).clamp_min(1)).sqrt()
    return mean[index], std[index], count[index]


def spread(rewards_N: Tensor, batch: Batch) -> Tensor:
    """(N,) per-sequence numbers on every token of the row, 0 off the mask."""
    return torch.where(batch.mask_NT, rewards_N[:, None], 0.0).to(batch.rollout_logprobs_NT.dtype)


def whiten(x_NT: Tensor, mask_NT: Tensor, shift_mean: bool = True) -> Tensor:
    """(x - mean) · rsqrt(var + 1e-8) over the mask, Bessel's n/(n-1); a single token is left as it is."""
    count = mask_NT.sum()
    if count < 2:
        return x_NT
    x = torch.where(mask_NT, x_NT, 0.0)
    mean = x.sum() / count
    var = torch.where(mask_NT, (x - mean) ** 2, 0.0).sum() / (count - 1)
    white = (x - mean) * torch.rsqrt(var + 1e-8)
    return torch.where(mask_NT, white if shift_mean else white + mean, 0.0)


@settings
class GroupNorm:
    """GRPO (2402.03300 §4.1.2): A_i = (R_i - mean) / (std + eps) inside the group.

    std: `group` (paper), `batch` (spread of all rewards of the batch, Lite-PPO), `none` (Dr.GRPO). baseline: `group` = statistics of all G,
    `retained` = of the filter's rows only (GFPO paper; no signal where retained rewards are equal); rejected rows get 0 either way.
    whiten: afterwards over all tokens of the batch (REINFORCE++-baseline).
    """

    std: Literal["group", "batch", "none"] = "group"
    baseline: Literal["group", "retained"] = "group"
    ddof: int = 1
    eps: float = 1e-6
    whiten: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        scored_N = batch.rewards_N.isfinite()
        use_N = scored_N & batch.keep_N if self.baseline == "retained" else scored_N
        mean_N, std_N, count_N = group_moments(batch.rewards_N, use_N, batch.group_N, self.ddof)
        centred = torch.where(scored_N, batch.rewards_N.double() - mean_N, 0.0)
        if self.std == "batch":
            spread_N = batch.rewards_N[use_N].double()
            std = spread_N.std(correction=self.ddof) if len(spread_N) > self.ddof else torch.zeros((), dtype=torch.float64)
            value_N = centred / (std + self.eps)
        else:
            value_N = centred / (std_N + self.eps) if self.std == "group" else centred
        usable_N = (count_N >= 2) & (std_N >= FLAT) & scored_N & batch.keep_N
        out_NT = spread(torch.where(usable_N, value_N, 0.0), batch)
        return whiten(out_NT, batch.mask_NT) if self.whiten else out_NT


@settings
class LeaveOneOut:
    """RLOO (2402.14740): A_i = R_i - mean of the others = G / (G - 1) · (R_i - mean). A group of one gets 0, not its raw reward."""

    def __call__(self, batch: Batch) -> Tensor:
        use_N = batch.rewards_N.isfinite() & batch.keep_N
        mean_N, std_N, count_N = group_moments(batch.rewards_N, use_N, batch.group_N, 1)
        value_N = (batch.rewards_N.double() - mean_N) * count_N / (count_N - 1).clamp_min(1)
        return spread(torch.where(use_N & (count_N >= 2) & (std_N >= FLAT), value_N, 0.0), batch)


def token_rewards(batch: Batch, penalty_NT: Tensor | None) -> Tensor:
    """(N, T): the reward on each row's last policy token, minus `penalty` (the KL in the reward) on every one."""
    mask = batch.mask_NT
    last = torch.where(mask, torch.arange(mask.shape[1])[None], -1).amax(1) if mask.shape[1] else torch.full((len(mask),), -1)
    out = torch.zeros(mask.shape, dtype=torch.float64)
    rows = (last >= 0) & batch.rewards_N.isfinite()
    out[rows.nonzero()[:, 0], last[rows]] = batch.rewards_N[rows].double()
    return out if penalty_NT is None else out - torch.where(mask, penalty_NT.double(), 0.0)


def gae(
    rewards_NT: Tensor, values_NT: Tensor, mask_NT: Tensor, gamma: float, lam: float | Tensor, after_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and λ-returns (A_raw + V), masked tokens skipped with the accumulators carried (ALGORITHMS §6.2).

    lam: one number, or one per row. after_N: value of the state after each row's last token; None = 0, the row has ended.
    """
    advantage = torch.zeros_like(rewards_NT)
    next_value = torch.zeros(len(rewards_NT), dtype=rewards_NT.dtype) if after_N is None else after_N.to(rewards_NT.dtype)
    running = torch.zeros_like(next_value)
    values = torch.where(mask_NT, values_NT, 0.0).to(rewards_NT.dtype)
    for t in reversed(range(rewards_NT.shape[1])):
        m = mask_NT[:, t]
        delta = rewards_NT[:, t] + gamma * next_value - values[:, t]
        running = torch.where(m, delta + gamma * lam * running, running)
        next_value = torch.where(m, values[:, t], next_value)
        advantage[:, t] = torch.where(m, running, 0.0)
    return advantage, torch.where(mask_NT, advantage + values, 0.0)


@settings
class GAE:
    """PPO with a critic. gamma 1.0: 0.99 would discount a terminal reward to 0.0066 after 500 tokens. Returns are never whitened.

    whiten_rewards: token rewards divided by their standard deviation, their mean kept. bootstrap_truncated: a completion that the token
    limit cut off goes on with the critic's value of what would follow, instead of 0. lam_value: λ of the returns where it is another than
    the policy's, length_alpha: the policy's λ is 1 - 1/(alpha · length) per completion (both VAPO, 2504.05118).
    """

    gamma: Number = 1.0
    lam: Number = 0.95
    whiten: bool = True
    whiten_rewards: bool = False
    bootstrap_truncated: bool = False
    lam_value: Number | None = None
    length_alpha: float | None = None

    def __call__(self, batch: Batch) -> Tensor:
        return self.with_penalty(batch, None)

    def with_penalty(self, batch: Batch, penalty_NT: Tensor | None) -> Tensor:
        assert batch.values_NT is not None, "GAE reads the critic's values"
        scored_NT = batch.mask_NT & batch.rewards_N.isfinite()[:, None]
        rewards = token_rewards(batch, penalty_NT)
        if self.whiten_rewards:
            rewards = whiten(rewards, scored_NT, shift_mean=False)
        after = (
            torch.where(batch.finished_N, 0.0, batch.after_N) if self.bootstrap_truncated and batch.after_N is not None else None
        )
        gamma, lam = plain(self.gamma), self._lam(batch)
        advantages, batch.returns_NT = gae(rewards, batch.values_NT, batch.mask_NT, gamma, lam, after)
        if self.lam_value is not None:
            _, batch.returns_NT = gae(rewards, batch.values_NT, batch.mask_NT, gamma, plain(self.lam_value), after)
        advantages = torch.where(scored_NT, advantages, 0.0)
        return whiten(advantages, scored_NT) if self.whiten else advantages

    def _lam(self, batch: Batch) -> float | Tensor:
        if self.length_alpha is None:
            return plain(self.lam)
        return (1 - 1 / (self.length_alpha * batch.mask_NT.sum(1).double()).clamp_min(1e-9)).clamp(0, 1)


@settings
class ReturnToGo:
    """REINFORCE++ (2501.03262): discounted return-to-go of the token rewards, whitened over all tokens of the batch.

    baseline: taken from each completion's reward first: `group` = the mean of its group, `leave_one_out` = that of the others.
    """

    gamma: Number = 1.0
    whiten: bool = True
    baseline: Literal["none", "group", "leave_one_out"] = "none"

    def __call__(self, batch: Batch) -> Tensor:
        return self.with_penalty(batch, None)

    def with_penalty(self, batch: Batch, penalty_NT: Tensor | None) -> Tensor:
        use_N = batch.rewards_N.isfinite() & batch.keep_N
        value_N = batch.rewards_N.double()
        if self.baseline != "none":
            mean_N, std_N, count_N = group_moments(batch.rewards_N, use_N, batch.group_N, 1)
            factor = count_N / (count_N - 1).clamp_min(1) if self.baseline == "leave_one_out" else 1.0
            value_N = torch.where((count_N >= 2) & (std_N >= FLAT), (value_N - mean_N) * factor, 0.0)
        scored_NT = batch.mask_NT & use_N[:, None]
        rewards = token_rewards(replace(batch, rewards_N=torch.where(use_N, value_N, torch.nan)), penalty_NT)
        returns, _ = gae(rewards, torch.zeros_like(rewards), batch.mask_NT, plain(self.gamma), 1.0)
        returns = torch.where(scored_NT, returns, 0.0)
        return whiten(returns, scored_NT) if self.whiten else returns


@settings
class ProcessNorm:
    """GRPO with process supervision (2402.03300 §4.1.3): all step rewards of a group normalised together; a token's advantage is the sum
    of those of the steps that end at it or later. Steps come in `Score.info["steps"]` as (token index of the step's end, reward)."""

    ddof: int = 1
    eps: float = 1e-6

    def __call__(self, batch: Batch) -> Tensor:
        assert batch.step_rewards_NT is not None, "process rewards need Score.info['steps']"
        use_NT = batch.step_rewards_NT.isfinite() & batch.mask_NT & batch.keep_N[:, None]
        group_NT = batch.group_N[:, None].expand(use_NT.shape)
        rewards, use, group = (x.flatten() for x in (batch.step_rewards_NT, use_NT, group_NT))
        mean, std, count = (x.view(use_NT.shape) for x in group_moments(rewards, use, group, self.ddof))
        usable = use_NT & (count >= 2) & (std >= FLAT)
        normal = torch.where(usable, (batch.step_rewards_NT.double() - mean) / (std + self.eps), 0.0)
        ahead = normal.flip(1).cumsum(1).flip(1)
        return torch.where(batch.mask_NT & batch.keep_N[:, None], ahead, 0.0).to(batch.rollout_logprobs_NT.dtype)


@settings
class RawReward:
    """REINFORCE without a baseline."""

    def __call__(self, batch: Batch) -> Tensor:
        use_N = batch.rewards_N.isfinite() & batch.keep_N
        return spread(torch.where(use_N, batch.rewards_N, 0.0), batch)


ADVANTAGES: dict[str, type] = {
    "group": GroupNorm,
    "leave_one_out": LeaveOneOut,
    "gae": GAE,
    "return_to_go": ReturnToGo,
    "process": ProcessNorm,
    "raw": RawReward,
}
Advantage = GroupNorm | LeaveOneOut | GAE | ReturnToGo | ProcessNorm | RawReward
