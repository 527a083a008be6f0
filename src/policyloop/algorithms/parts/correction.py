"""Corrections for the difference between trainer and engine: w = exp(old_logp - rollout_logp), on the POLICY term only (ALGORITHMS §16).

A missing engine log-prob (NaN) counts as weight 1. Always detached.

Example (token truncate, cap 2): old -1.0, engine -2.0 -> min(e, 2) = 2.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from policyloop.types import settings


def log_weight(old_NT: Tensor, rollout_NT: Tensor, mask_NT: Tensor) -> Tensor:
    usable = mask_NT & rollout_NT.isfinite()
    return torch.where(usable, old_NT.detach() - torch.where(usable, rollout_NT, 0.0), 0.0).clamp(-20, 20)


@settings
class ImportanceWeight:
    """level `token` or `sequence` (product over the row); mode `truncate` (clamp into [low, high]) or `mask` (0 outside).

    token+truncate = TIS, token+mask = IcePop, sequence+mask = MIS. batch_norm divides by the mean weight.
    """

    level: Literal["token", "sequence"] = "token"
    mode: Literal["truncate", "mask"] = "truncate"
    low: float = 0.0
    high: float = 2.0
    batch_norm: bool = False

    def __call__(self, old_NT: Tensor, rollout_NT: Tensor, mask_NT: Tensor) -> Tensor:
        log = log_weight(old_NT, rollout_NT, mask_NT)
        if self.level == "sequence":
            log = log.sum(1, keepdim=True).clamp(-20, 20).expand_as(log)
        w = log.exp()
        w = w.clamp(self.low, self.high) if self.mode == "truncate" else torch.where((w >= self.low) & (w <= self.high), w, 0.0)
        if self.batch_norm:
            w = w / torch.where(mask_NT, w, 0.0).sum().div(mask_NT.sum().clamp_min(1)).clamp_min(1e-8)
        return torch.where(mask_NT, w, 0.0)

    @property
    def looks_at_rows(self) -> bool:
        """Whether dropping rows or normalising needs the old log-probs of the whole step."""
        return self.batch_norm


@settings
class SequenceMaskTis:
    """Rows whose geometric mean weight is in [low, high] are kept, with token weights as they are (OpenRLHF, NeMo)."""

    low: float = 0.999
    high: float = 1.002

    def __call__(self, old_NT: Tensor, rollout_NT: Tensor, mask_NT: Tensor) -> Tensor:
        log = log_weight(old_NT, rollout_NT, mask_NT)
        mean_N1 = (log.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp_min(1)).exp()
        return torch.where(mask_NT & (mean_N1 >= self.low) & (mean_N1 <= self.high), log.exp(), 0.0)

    looks_at_rows = True


@settings
class Rejection:
    """Rows whose mean k3 between trainer and engine is above `limit` get no policy gradient (verl `seq_mean_k3`); others are as they are."""

    limit: float = 0.05

    def __call__(self, old_NT: Tensor, rollout_NT: Tensor, mask_NT: Tensor) -> Tensor:
        log = log_weight(old_NT, rollout_NT, mask_NT)
        mean_N1 = (torch.expm1(log) - log).sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp_min(1)
        return torch.where(mask_NT & (mean_N1 <= self.limit), torch.ones_like(log), 0.0)

    looks_at_rows = True


CORRECTIONS: dict[str, type] = {"importance": ImportanceWeight, "sequence_mask_tis": SequenceMaskTis, "rejection": Rejection}
Correction = ImportanceWeight | SequenceMaskTis | Rejection
