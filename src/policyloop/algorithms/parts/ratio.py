"""Ratios: (logprobs, old_logprobs, mask) -> new / old probability per token, float32, log-ratio clamped at ±limit before exp.

Example: logprobs -1.0 against old -1.2 -> exp(0.2) = 1.2214.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policyloop.types import settings


def log_ratio(logprobs_NT: Tensor, old_NT: Tensor, mask_NT: Tensor, limit: float) -> Tensor:
    """Difference on the mask, 0 elsewhere: replaced before arithmetic, so that NaN and -inf - -inf at masked positions never enter."""
    new = torch.where(mask_NT, logprobs_NT, 0.0).clamp_min(-1e4)
    old = torch.where(mask_NT, old_NT, 0.0).clamp_min(-1e4)
    return (new - old).clamp(-limit, limit)


@settings
class TokenRatio:
    """r_t = exp(logp_t - old_t) (ALGORITHMS §2.2)."""

    limit: float = 20.0

    def __call__(self, logprobs_NT: Tensor, old_NT: Tensor, mask_NT: Tensor) -> Tensor:
        return log_ratio(logprobs_NT, old_NT, mask_NT, self.limit).exp()


@settings
class SequenceRatio:
    """s_i = exp(mean over tokens of logp - old), the same for each token of a row (GSPO 2507.18071 eq. 7).

    `token: true` is GSPO-token (eq. 14): sg(s_i) · exp(logp_t - sg(logp_t)), equal in value, gradient per token.
    """

    limit: float = 10.0
    token: bool = False

    def __call__(self, logprobs_NT: Tensor, old_NT: Tensor, mask_NT: Tensor) -> Tensor:
        d = log_ratio(logprobs_NT, old_NT, mask_NT, 1e4)
        s_N1 = (d.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp_min(1)).clamp(-self.limit, self.limit).exp()
        if not self.token:
            return s_N1.expand_as(d)
        own = torch.where(mask_NT, logprobs_NT, 0.0)
        return s_N1.detach() * (own - own.detach()).exp()


@settings
class SequenceProductRatio:
    """exp(Σ_t logp - old), unnormalised (RLOO as in TRL): clips almost everything for long answers off-policy."""

    limit: float = 20.0

    def __call__(self, logprobs_NT: Tensor, old_NT: Tensor, mask_NT: Tensor) -> Tensor:
        d = log_ratio(logprobs_NT, old_NT, mask_NT, 1e4)
        return d.sum(1, keepdim=True).clamp(-self.limit, self.limit).exp().expand_as(d)


RATIOS: dict[str, type] = {"token": TokenRatio, "sequence": SequenceRatio, "sequence_product": SequenceProductRatio}
Ratio = TokenRatio | SequenceRatio | SequenceProductRatio
