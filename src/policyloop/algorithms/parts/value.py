"""The critic's loss: (values, old_values, returns) -> loss per token, 0.5 · max((v - R)², (clip(v, old ± clip) - R)²).

Example (clip 0.2): v 1.0, old 0.0, R 1.0 -> clipped value 0.2 -> 0.5 · 0.64 = 0.32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policyloop.algorithms.parts.schedule import Number, plain
from policyloop.types import settings


@settings
class ValueLoss:
    """clip null = plain squared error (clipping keeps a bad early critic bad). coef matters only where critic and policy share a trunk."""

    clip: Number | None = 0.2
    coef: float = 1.0

    def __call__(self, values_NT: Tensor, old_values_NT: Tensor, returns_NT: Tensor) -> Tensor:
        loss = (values_NT - returns_NT) ** 2
        if self.clip is None:
            return 0.5 * loss
        near = old_values_NT + (values_NT - old_values_NT).clamp(-plain(self.clip), plain(self.clip))
        return 0.5 * torch.maximum(loss, (near - returns_NT) ** 2)


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(R - V) / (var(R) + 1e-5)."""
    return float(1 - (returns - values).var() / (returns.var() + 1e-5))
