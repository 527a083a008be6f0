"""Surrogates: (ratio, advantages, logprobs) -> loss per token. Elementwise; masks and denominators are the weight's business.

Example (clip 0.2/0.2, A = 1): ratio 1.5 -> loss -1.2, gradient 0; ratio 0.9 -> loss -0.9.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policyloop.algorithms.parts.schedule import Number, plain
from policyloop.types import settings


@settings
class Clip:
    """PPO: max(-A r, -A clip(r, 1 - low, 1 + high)); with `dual` c > 1, where A < 0 no more than -c A (1912.09729). dual null = off."""

    low: Number = 0.2
    high: Number = 0.2
    dual: Number | None = None

    def __call__(self, ratio_NT: Tensor, advantages_NT: Tensor, logprobs_NT: Tensor) -> Tensor:
        clipped = ratio_NT.clamp(1 - plain(self.low), 1 + plain(self.high))
        loss = torch.maximum(-advantages_NT * ratio_NT, -advantages_NT * clipped)
        if self.dual is None:
            return loss
        return torch.where(advantages_NT < 0, torch.minimum(loss, -plain(self.dual) * advantages_NT), loss)

    def shares(self, ratio_NT: Tensor, advantages_NT: Tensor) -> dict[str, Tensor]:
        """Which tokens are bound, from the ratio before clipping."""
        found = {
            "clip/low": (ratio_NT < 1 - plain(self.low)) & (advantages_NT < 0),
            "clip/high": (ratio_NT > 1 + plain(self.high)) & (advantages_NT > 0),
        }
        if self.dual is not None:
            found["clip/dual"] = (ratio_NT > plain(self.dual)) & (advantages_NT < 0)
        return found


@settings
class Cispo:
    """CISPO (2506.13585): -sg(clip(r, weight_min, weight_max)) · A · logp; every token keeps a gradient. Bounds are absolute."""

    weight_min: float = 0.0
    weight_max: float = 5.0

    def __call__(self, ratio_NT: Tensor, advantages_NT: Tensor, logprobs_NT: Tensor) -> Tensor:
        return -ratio_NT.detach().clamp(self.weight_min, self.weight_max) * advantages_NT * logprobs_NT

    def shares(self, ratio_NT: Tensor, advantages_NT: Tensor) -> dict[str, Tensor]:
        return {"clip/low": ratio_NT < self.weight_min, "clip/high": ratio_NT > self.weight_max}


@settings
class Reinforce:
    """-A · logp."""

    def __call__(self, ratio_NT: Tensor, advantages_NT: Tensor, logprobs_NT: Tensor) -> Tensor:
        return -advantages_NT * logprobs_NT

    def shares(self, ratio_NT: Tensor, advantages_NT: Tensor) -> dict[str, Tensor]:
        return {}


SURROGATES: dict[str, type] = {"clip": Clip, "cispo": Cispo, "reinforce": Reinforce}
Surrogate = Clip | Cispo | Reinforce
