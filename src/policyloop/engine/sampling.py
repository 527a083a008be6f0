"""One token per row from logits: temperature, top-k, top-p, min-p, then a two-level inverse CDF.

In: logits (R, V) float32, u (R,) float64. Out: token ids (R,), log-probs (R,) of log-softmax(logits / temperature) over the full vocabulary,
before any truncation. Block sums first, then inside one block: exact to float64 where a float32 cumulative sum over the vocabulary loses
thousands of words, and several times faster.

Example: probabilities [0.5, 0.3, 0.2], u = 0.6 -> token 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from policyloop.types import SamplingParams

BLOCK = 256
SHORTLIST = 1024  # top-p looks here first; a full sort of V is the fallback


@dataclass(frozen=True, slots=True)
class Truncation:
    """Per-row settings as (R, 1) tensors; `any_*` skip what no row asks for."""

    temperature: Tensor
    greedy: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @staticmethod
    def of(params: Sequence[SamplingParams]) -> Truncation:
        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype)[:, None]

        return Truncation(
            column([p.temperature if p.temperature > 0 else 1.0 for p in params], torch.float32),
            column([p.temperature <= 0 for p in params], torch.bool),
            column([p.top_k for p in params], torch.int64),
            column([p.top_p for p in params], torch.float64),
            column([p.min_p for p in params], torch.float32),
        )


def sample(logits_RV: Tensor, u_R: Tensor, how: Truncation) -> tuple[Tensor, Tensor]:
    """Token ids and their untruncated log-probs."""
    z = logits_RV.float() / how.temperature
    lse = z.logsumexp(-1, keepdim=True)
    if bool(how.greedy.all()):
        token = z.argmax(-1)
    else:
        p = truncate((z - lse).exp(), how)
        token = torch.where(how.greedy[:, 0], z.argmax(-1), inverse_cdf(p, u_R))
    return token, (z.gather(1, token[:, None]) - lse)[:, 0]


def truncate(p_RV: Tensor, how: Truncation) -> Tensor:
    """Probabilities with the words that top-k, top-p and min-p leave out set to 0 (not renormalised)."""
    if bool((how.top_k > 0).any()):
        k = int(how.top_k.max().clamp_max(p_RV.shape[1]))
        best = p_RV.topk(k, -1).values
        at = (how.top_k.clamp(1, k) - 1).clamp_max(k - 1)
        limit = torch.where(how.top_k > 0, best.gather(1, at), 0.0)
        p_RV = torch.where(p_RV >= limit, p_RV, 0.0)
    if bool((how.top_p < 1).any()):
        p_RV = torch.where(p_RV >= _nucleus(p_RV, how.top_p), p_RV, 0.0)
    if bool((how.min_p > 0).any()):
        p_RV = torch.where(p_RV >= how.min_p * p_RV.amax(-1, keepdim=True), p_RV, 0.0)
    return p_RV


def _nucleus(p_RV: Tensor, top_p: Tensor) -> Tensor:
    """(R, 1) the smallest probability inside the smallest set whose mass reaches top_p."""
    wanted = top_p * p_RV.double().sum(-1, keepdim=True)
    for size in (min(SHORTLIST, p_RV.shape[1]), p_RV.shape[1]):
        best = p_RV.topk(size, -1).values
        mass = best.double().cumsum(-1)
        if size == p_RV.shape[1] or bool((mass[:, -1:] >= wanted).all()):
            break
    last = (mass < wanted).sum(-1, keepdim=True).clamp_max(best.shape[1] - 1)
    return torch.where(top_p < 1, best.gather(1, last), 0.0)


def inverse_cdf(p_RV: Tensor, u_R: Tensor) -> Tensor:
    """(R,) the first index whose cumulative mass exceeds u · total; words of probability 0 are never drawn."""
    rows, v = p_RV.shape
    blocks = -(-v // BLOCK)
    p = F.pad(p_RV, (0, blocks * BLOCK - v)).view(rows, blocks, BLOCK)
    coarse = p.double().sum(-1).cumsum(-1)
    target = u_R.double()[:, None] * coarse[:, -1:]
    block = torch.searchsorted(coarse, target, right=True).clamp_max(blocks - 1)
    # u · total may round up to the total itself: step back to the last block that has any mass
    full = (coarse[:, -1:] > coarse.new_zeros(1)) & (torch.searchsorted(coarse, coarse[:, -1:]).clamp_max(blocks - 1) < block)
    block = torch.where(full, torch.searchsorted(coarse, coarse[:, -1:]).clamp_max(blocks - 1), block)
    before = torch.where(block > 0, coarse.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = p[torch.arange(rows), block[:, 0]].double().cumsum(-1)
    fine = torch.searchsorted(inside, target - before, right=True)
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)  # the last word of the block with any mass
    return (block * BLOCK + torch.minimum(fine, last))[:, 0]
