"""The composition of pairs: every method that learns from (chosen, rejected) directly is one value of `Preference`.

    L = mean over the optimizer step's pairs of loss(chosen, rejected);   a pair is a group of 2, chosen first

Example:
    >>> DPO = Preference(loss=Sigmoid(beta=0.1))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from policyloop.algorithms.loss import Loss, Metrics, Stat
from policyloop.algorithms.objective import AllSum, alone
from policyloop.algorithms.parts.pair import PAIR_LOSSES, PairLoss, Sigmoid, gap
from policyloop.algorithms.parts.weight import PairMean
from policyloop.types import Batch, Group, Outputs, Progress, settings


class Pairwise:
    """What all objectives on pairs share: nothing is sampled, a pair stays in one micro-batch, and each pair weighs 1 / pairs of the
    whole optimizer step. A pair with an empty side teaches nothing; it has weight 0 and is counted."""

    @property
    def group_size(self) -> int:
        return 2

    @property
    def updates_per_rollout(self) -> int:
        return 1

    @property
    def supervised(self) -> bool:
        return True

    @property
    def whole_groups(self) -> bool:
        return True

    @property
    def needs_critic(self) -> bool:
        return False

    def needs_old(self, updates: int) -> bool:
        return False

    def mark(self, groups: Sequence[Group]) -> list[Group]:
        return list(groups)

    def prepare(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        return batch

    def weigh(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        weight_NT = PairMean()(batch.mask_NT & sound(batch)[:, None], batch.group_N, all_sum)
        return dataclasses.replace(batch, weight_NT=weight_NT)

    def active(self, batch: Batch) -> Tensor:
        return sound(batch)

    def describe(self, batch: Batch) -> Metrics:
        length = batch.length_N.double()
        return {
            "pairs/count": Stat("sum", float(len(batch)) / 2),
            "pairs/empty": Stat("sum", float((~sound(batch)).sum()) / 2),
            "pairs/length_chosen": Stat.mean(float(length[0::2].sum()), len(batch) / 2),
            "pairs/length_rejected": Stat.mean(float(length[1::2].sum()), len(batch) / 2),
        }


def sound(batch: Batch) -> Tensor:
    """(N,) bool: rows of pairs whose two sides have tokens. Rows lie in pairs, chosen first."""
    full = batch.mask_NT.any(1).view(-1, 2).all(1)
    return full.repeat_interleave(2)


def pair_weight(batch: Batch) -> Tensor:
    """(P,) what each pair counts: the sum over its two rows."""
    assert batch.weight_NT is not None
    return batch.weight_NT.sum(1).double().view(-1, 2).sum(1)


def sums(x_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """(P, 2) sums over each side's tokens, float64: log-probs of long answers are large and their differences small."""
    return torch.where(mask_NT, x_NT, 0.0).double().sum(1).view(-1, 2)


@settings
class Preference(Pairwise):
    """loss: what a pair costs. reference_free: the reference counts as uniform (its terms are left out)."""

    slots: ClassVar[Mapping[str, Mapping[str, type]]] = {"loss": PAIR_LOSSES}

    loss: PairLoss = field(default_factory=Sigmoid)
    reference_free: bool = False

    @property
    def head(self) -> Literal["tokens", "scalar"]:
        return "tokens"

    @property
    def needs_reference(self) -> bool:
        return self.loss.uses_reference and not self.reference_free

    def at(self, progress: Progress, controllers: Mapping[str, float] = {}) -> Preference:
        return self

    def sides(self, outputs: Outputs, batch: Batch) -> Tensor:
        """(P, 2) implicit rewards."""
        return self.loss.rewards(*self._sides(outputs, batch))

    def _sides(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor | None, Tensor]:
        """Summed log-probs of policy and reference, and lengths, each (P, 2)."""
        mask = batch.mask_NT
        ref_P2 = sums(batch.ref_logprobs_NT, mask) if self.needs_reference and batch.ref_logprobs_NT is not None else None
        return sums(outputs.logprobs_NT, mask), ref_P2, mask.sum(1).double().view(-1, 2)

    def __call__(self, outputs: Outputs, batch: Batch) -> Loss:
        mask = batch.mask_NT
        logprobs_P2, ref_P2, length_P2 = self._sides(outputs, batch)
        value = (self.loss(logprobs_P2, ref_P2, length_P2) * pair_weight(batch)).sum()
        with torch.no_grad():
            rewards_P2 = self.loss.rewards(logprobs_P2, ref_P2, length_P2)
            found = {"loss/preference": Stat("sum", float(value)), **side_stats(rewards_P2)}
            found |= drift(logprobs_P2, ref_P2, length_P2)
            found["tokens/trained"] = Stat("sum", float(mask.sum()))
            found["entropy"] = Stat.mean(float(outputs.entropy_NT[mask].double().sum()), float(mask.sum()))
        return Loss(value, found)


def side_stats(rewards_P2: Tensor) -> Metrics:
    """Rewards of both sides, their margin, and how often the chosen side is ahead."""
    n, margin = float(len(rewards_P2)), gap(rewards_P2)
    return {
        "rewards/chosen": Stat.mean(float(rewards_P2[:, 0].sum()), n),
        "rewards/rejected": Stat.mean(float(rewards_P2[:, 1].sum()), n),
        "rewards/margin": Stat.mean(float(margin.sum()), n),
        "rewards/accuracy": Stat.mean(float((margin > 0).sum()), n),
    }


def drift(logprobs_P2: Tensor, ref_P2: Tensor | None, length_P2: Tensor) -> Metrics:
    """Log-probs per token of both sides; against the reference, the chosen side's drift (falling is DPO's classic failure)."""
    n = float(len(logprobs_P2))
    average = logprobs_P2 / length_P2
    found: Metrics = {
        "logps/chosen": Stat.mean(float(average[:, 0].sum()), n),
        "logps/rejected": Stat.mean(float(average[:, 1].sum()), n),
    }
    if ref_P2 is not None:
        found["logps/chosen_drift"] = Stat.mean(float((logprobs_P2 - ref_P2)[:, 0].sum()), n)
    return found
