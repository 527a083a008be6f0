"""Supervised fine-tuning: L = -Σ m logp / N_tokens of the whole optimizer step (ALGORITHMS §3), as groups of one.

`dft: true` weighs each token by its own probability, sg(p_t) (2508.05629).

Example: two rows with 2 and 3 supervised tokens, log-probs -1 everywhere -> loss 1.0, each token weighs 1/5.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from policyloop.algorithms.loss import Loss, Metrics, Stat
from policyloop.algorithms.objective import AllSum, alone
from policyloop.algorithms.parts.weight import WEIGHTS, TokenMean, Weight
from policyloop.algorithms.policy_gradient import weighted
from policyloop.types import Batch, Group, Outputs, Progress, settings


@settings
class Supervised:
    """weight: how tokens are averaged. dft: weigh each token by its own probability."""

    slots: ClassVar[Mapping[str, Mapping[str, type]]] = {"weight": WEIGHTS}

    weight: Weight = field(default_factory=TokenMean)
    dft: bool = False

    @property
    def group_size(self) -> int:
        return 1

    @property
    def updates_per_rollout(self) -> int:
        return 1

    @property
    def supervised(self) -> bool:
        return True

    @property
    def whole_groups(self) -> bool:
        return False

    @property
    def head(self) -> Literal["tokens", "scalar"]:
        return "tokens"

    @property
    def needs_reference(self) -> bool:
        return False

    @property
    def needs_critic(self) -> bool:
        return False

    def needs_old(self, updates: int) -> bool:
        return False

    def at(self, progress: Progress, controllers: Mapping[str, float] = {}) -> Supervised:
        return self

    def mark(self, groups: Sequence[Group]) -> list[Group]:
        return list(groups)

    def prepare(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        return batch

    def weigh(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        return dataclasses.replace(batch, weight_NT=self.weight(batch.mask_NT, batch.group_N, all_sum))

    def active(self, batch: Batch) -> Tensor:
        assert batch.weight_NT is not None
        return (batch.weight_NT != 0).any(1)

    def __call__(self, outputs: Outputs, batch: Batch) -> Loss:
        assert batch.weight_NT is not None
        mask = batch.mask_NT & (batch.weight_NT != 0)
        logprobs = torch.where(mask, outputs.logprobs_NT, 0.0)
        nll = -logprobs * logprobs.detach().exp() if self.dft else -logprobs
        value = weighted(nll, batch.weight_NT, mask)
        count = float(mask.sum())
        with torch.no_grad():
            found: Metrics = {
                "loss/sft": Stat("sum", float(value)),
                "sft/nll": Stat.mean(-float(logprobs.double().sum()), count),
                "entropy": Stat.mean(float(outputs.entropy_NT[mask].double().sum()), count),
                "tokens/trained": Stat("sum", count),
            }
        return Loss(value, found)

    def describe(self, batch: Batch) -> Metrics:
        """Rows without a supervised token after truncation teach nothing; count them."""
        return {"sft/empty_rows": Stat("sum", float((batch.length_N == 0).sum()))}


def perplexity(nll: float) -> float:
    """exp of the mean negative log-likelihood, capped so that it prints."""
    return math.exp(min(nll, 50.0))


SFT = Supervised()
