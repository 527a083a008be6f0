"""The composed algorithms on plain tensors, for notebooks and other people's trainers: no types, no trainer.

Example:
    >>> advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 0, 0]))
    >>> grpo_loss(logprobs, old_logprobs, advantages, mask).backward()
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from policyloop.algorithms.gfpo import GFPO
from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.policy_gradient import PolicyGradient
from policyloop.types import Batch, Outputs


def batch_of(
    mask_NT: Tensor,
    rewards_N: Tensor | None = None,
    group_N: Tensor | None = None,
    keep_N: Tensor | None = None,
    **fields: Tensor | None,
) -> Batch:
    """A `Batch` from what is at hand: one group, everything kept, nothing known of the engine, unless said otherwise."""
    n = len(mask_NT)
    mask = mask_NT.bool()
    return Batch(
        mask_NT=mask,
        counted_NT=mask,
        group_N=torch.zeros(n, dtype=torch.int64) if group_N is None else group_N,
        keep_N=torch.ones(n, dtype=torch.bool) if keep_N is None else keep_N.bool(),
        rewards_N=torch.zeros(n, dtype=torch.float64) if rewards_N is None else rewards_N.double(),
        metric_N=torch.full((n,), float("nan"), dtype=torch.float64),
        length_N=mask.sum(1),
        finished_N=torch.ones(n, dtype=torch.bool),
        rollout_logprobs_NT=torch.full(mask.shape, float("nan"), dtype=torch.float64),
        **fields,
    )


def group_advantages(rewards: Tensor, group_ids: Tensor, keep: Tensor | None = None, algorithm: PolicyGradient = GRPO) -> Tensor:
    """(N,) advantages of (N,) rewards within their groups, by that algorithm's advantage part."""
    batch = batch_of(torch.ones(len(rewards), 1, dtype=torch.bool), rewards, group_ids, keep)
    return algorithm.advantage(batch)[:, 0]


def policy_loss(
    algorithm: PolicyGradient,
    logprobs: Tensor,
    old_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    ref_logprobs: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    keep: Tensor | None = None,
    group_ids: Tensor | None = None,
) -> Tensor:
    """The scalar loss of one optimizer step. logprobs (N, T) with gradient; advantages (N,) or (N, T); mask (N, T).

    Without `ref_logprobs` the KL term is left out, without `entropy` the bonus is.
    """
    whole = replace(
        algorithm,
        kl=None if ref_logprobs is None else algorithm.kl,
        entropy=None if entropy is None else algorithm.entropy,
        value=None,
    )
    spread = advantages[:, None].expand(mask.shape) if advantages.dim() == 1 else advantages
    batch = batch_of(mask, None, group_ids, keep, old_logprobs_NT=old_logprobs, ref_logprobs_NT=ref_logprobs)
    batch.advantages_NT = torch.where(batch.mask_NT, spread, 0.0).detach()
    if rollout_logprobs is not None:
        batch.rollout_logprobs_NT = rollout_logprobs
    outputs = Outputs(logprobs, torch.zeros_like(logprobs) if entropy is None else entropy)
    return whole(outputs, whole.weigh(batch)).value


def grpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    algorithm: PolicyGradient = GRPO,
    **rest: Tensor,
) -> Tensor:
    """GRPO's loss (2402.03300 eq. 3): clipped surrogate, masked, divided by the step's tokens, plus the KL if a reference is given."""
    return policy_loss(algorithm, logprobs, old_logprobs, advantages, mask, **rest)


def gfpo_loss(
    logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, mask: Tensor, keep: Tensor, **rest: Tensor
) -> Tensor:
    """GFPO's loss (2508.09726 eq. 2): only rows in `keep` carry loss, the denominator is the tokens of all G."""
    return policy_loss(GFPO, logprobs, old_logprobs, advantages, mask, keep=keep, **rest)
