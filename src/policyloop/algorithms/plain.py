"""The composed algorithms on plain tensors, for notebooks and other people's trainers: no types, no trainer.

Example:
    >>> advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.tensor([0, 0, 0, 0]))
    >>> grpo_loss(logprobs, old_logprobs, advantages, mask).backward()
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from policyloop.algorithms.cispo import CISPO
from policyloop.algorithms.dapo import DAPO
from policyloop.algorithms.drgrpo import DRGRPO
from policyloop.algorithms.gfpo import GFPO
from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.gspo import GSPO
from policyloop.algorithms.loss import Loss
from policyloop.algorithms.parts.advantage import GAE
from policyloop.algorithms.parts.entropy import Entropy
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.value import ValueLoss
from policyloop.algorithms.parts.weight import Constant
from policyloop.algorithms.policy_gradient import PolicyGradient
from policyloop.algorithms.ppo import PPO
from policyloop.algorithms.reinforce import REINFORCE
from policyloop.algorithms.rloo import RLOO
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


def drgrpo_loss(
    logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, mask: Tensor, max_tokens: int, **rest: Tensor
) -> Tensor:
    """Dr.GRPO's loss (2503.20783): summed over tokens, divided by the configured `max_tokens`, mean over completions."""
    return policy_loss(replace(DRGRPO, weight=Constant(max_tokens=max_tokens)), logprobs, old_logprobs, advantages, mask, **rest)


def dapo_loss(
    logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, mask: Tensor, keep: Tensor | None = None, **rest: Tensor
) -> Tensor:
    """DAPO's loss (2503.14476 eq. 12): clip 0.2 below, 0.28 above, mean over the tokens of kept rows."""
    return policy_loss(DAPO, logprobs, old_logprobs, advantages, mask, keep=keep, **rest)


def cispo_loss(logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, mask: Tensor, **rest: Tensor) -> Tensor:
    """CISPO's loss (2506.13585 eq. 4): -sg(min(r, 5)) A logp, mean over tokens."""
    return policy_loss(CISPO, logprobs, old_logprobs, advantages, mask, **rest)


def gspo_loss(logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, mask: Tensor, **rest: Tensor) -> Tensor:
    """GSPO's loss (2507.18071 eq. 5): one ratio per completion, clipped at 3e-4 and 4e-4, mean over completions."""
    return policy_loss(GSPO, logprobs, old_logprobs, advantages, mask, **rest)


def rloo_loss(logprobs: Tensor, old_logprobs: Tensor | None, advantages: Tensor, mask: Tensor, **rest: Tensor) -> Tensor:
    """RLOO's loss with token ratios: summed over tokens, mean over completions. Its advantages: group_advantages(..., algorithm=RLOO)."""
    return policy_loss(RLOO, logprobs, old_logprobs, advantages, mask, **rest)


def reinforce_loss(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-A Σ logp, mean over completions."""
    return policy_loss(REINFORCE, logprobs, None, advantages, mask)


def gae_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    """(N, T) advantages and returns from (N,) rewards, which fall on each row's last token, and (N, T) values of the states before tokens."""
    batch = batch_of(mask, rewards, values_NT=values.detach())
    advantages = GAE(gamma=gamma, lam=lam, whiten=whiten)(batch)
    assert batch.returns_NT is not None
    return advantages.to(values.dtype), batch.returns_NT.to(values.dtype)


def ppo_loss(
    policy_logits: Tensor,
    value_preds: Tensor,
    actions: Tensor,
    rewards: Tensor,
    masks: Tensor,
    *,
    old_logprobs: Tensor | None = None,
    old_values: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    clip_epsilon: float = 0.2,
    value_clip: float | None = 0.2,
    value_coef: float = 0.5,
    entropy_coef: float = 0.01,
    kl_coef: float = 0.001,
    temperature: float = 1.0,
) -> Loss:
    """PPO with a shared trunk, in one call: logits (N, T, V) and values (N, T) of the states before the `actions` (N, T), rewards (N,).

    `.value` = policy + value_coef · 0.5 clipped squared error - entropy_coef · entropy + kl_coef · KL; `.metrics` has each term. Old log-probs
    and values are those of before the first update (left out: this is the first). Advantages come from the old values, so no policy gradient
    flows into the critic. The KL (k3, against `ref_logprobs`) is left out without a reference.
    """
    mask = masks.bool()
    distribution = (policy_logits / temperature).log_softmax(-1)
    logprobs = distribution.gather(-1, actions[..., None])[..., 0]
    entropy = -(distribution.exp() * distribution.clamp_min(-1e30)).sum(-1)
    algorithm = replace(
        PPO,
        advantage=GAE(gamma=gamma, lam=lam),
        surrogate=Clip(low=clip_epsilon, high=clip_epsilon),
        kl=None if ref_logprobs is None else KL(coef=kl_coef),
        entropy=Entropy(coef=entropy_coef),
        value=ValueLoss(clip=value_clip, coef=value_coef),
    )
    batch = batch_of(
        mask,
        rewards,
        torch.arange(len(mask)),
        old_logprobs_NT=old_logprobs,
        ref_logprobs_NT=ref_logprobs,
        values_NT=(value_preds if old_values is None else old_values).detach(),
    )
    batch = algorithm.weigh(algorithm.prepare(batch))
    return algorithm(Outputs(logprobs, entropy, value_preds), batch)
