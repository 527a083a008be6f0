"""Weights: who divides by what, decided once for the whole optimizer step. weight_NT sums to 1 over it (token_sum: to the tokens).

A micro-batch's loss is Σ weight · loss over its rows; micro-batches and ranks add. So no split can change a gradient (ALGORITHMS §2.3).
Empty rows are excluded from every denominator; an all-empty step has weight 0 everywhere.

Example (token_mean, masks of 2 and 3 tokens): every token weighs 1/5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from policyloop.types import settings

AllSum = Callable[[Tensor], Tensor]
Count = Literal["all", "retained"]


def _share(mask_NT: Tensor, per_row: Tensor, total: Tensor) -> Tensor:
    """per_row (N,) spread over each row's tokens and divided by `total` (at least a tiny number, so that empty is 0, not NaN)."""
    return torch.where(mask_NT, (per_row / total.clamp_min(1.0))[:, None], 0.0)


@settings
class TokenMean:
    """Σ L m / Σ m over the step (DAPO eq. 12). count: `all` = every completion's tokens, `retained` = the filter's rows only."""

    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        ones = torch.ones(len(counted_NT), dtype=torch.float64)
        return _share(counted_NT, ones, all_sum(counted_NT.sum().double()))


@settings
class SequenceMean:
    """Mean over non-empty rows of the mean over tokens (GRPO eq. 3, GSPO)."""

    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        length_N = counted_NT.sum(1).double()
        return _share(counted_NT, 1 / length_N.clamp_min(1), all_sum((length_N > 0).sum().double()))


@settings
class SequenceSum:
    """Mean over non-empty rows of the sum over tokens (REINFORCE, RLOO)."""

    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        ones = torch.ones(len(counted_NT), dtype=torch.float64)
        return _share(counted_NT, ones, all_sum((counted_NT.sum(1) > 0).sum().double()))


@settings
class Constant:
    """Mean over non-empty rows of the sum over tokens / max_tokens (Dr.GRPO): max_tokens is the configured limit, not the padding."""

    max_tokens: int = 256
    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        row = torch.full((len(counted_NT),), 1 / self.max_tokens, dtype=torch.float64)
        return _share(counted_NT, row, all_sum((counted_NT.sum(1) > 0).sum().double()))


@settings
class PromptMean:
    """Mean over prompts of the token mean inside the prompt (S3-44: one weight per group)."""

    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        groups, index_N = group_N.unique(return_inverse=True)
        tokens_G = torch.zeros(len(groups), dtype=torch.float64).index_add_(0, index_N, counted_NT.sum(1).double())
        return _share(counted_NT, 1 / tokens_G.clamp_min(1)[index_N], all_sum((tokens_G > 0).sum().double()))


@settings
class PairMean:
    """Mean over pairs: a pair's weight is the sum over its two rows (DPO, reward model)."""

    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        length_N = counted_NT.sum(1).double()
        pairs = all_sum(torch.tensor(float(len(group_N[length_N > 0].unique())), dtype=torch.float64)).clamp_min(1)
        return _share(counted_NT, 0.5 / length_N.clamp_min(1), pairs)


@settings
class TokenSum:
    """Σ L m: the building block without a denominator."""

    count: Count = "all"

    def __call__(self, counted_NT: Tensor, group_N: Tensor, all_sum: AllSum) -> Tensor:
        return counted_NT.double()


WEIGHTS: dict[str, type] = {
    "token_mean": TokenMean,
    "sequence_mean": SequenceMean,
    "sequence_sum": SequenceSum,
    "constant": Constant,
    "prompt_mean": PromptMean,
    "pair_mean": PairMean,
    "token_sum": TokenSum,
}
Weight = TokenMean | SequenceMean | SequenceSum | Constant | PromptMean | PairMean | TokenSum
