"""The reward model (Bradley and Terry 1952; InstructGPT 2203.02155 eq. 1): a scalar at the last token of each side.

    L = -mean log sigmoid(r_chosen - r_rejected - margin) + c · mean((r_chosen + r_rejected)²)

c centres the scores, which are only known up to a shift (Eisenstein et al. 2312.09244; 0.01). `margin: true` asks a pair for as much as its
own scores differ (Llama 2, 2307.09288 §3.2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from policyloop.algorithms.loss import Loss, Stat
from policyloop.algorithms.parts.pair import gap
from policyloop.algorithms.preference import Pairwise, pair_weight, side_stats
from policyloop.types import Batch, Outputs, Progress, settings


@settings
class BradleyTerry(Pairwise):
    """center: c, the weight of (r_chosen + r_rejected)². margin: ask for the difference of the pair's own scores (0 where it has none)."""

    center: float = 0.01
    margin: bool = False

    @property
    def head(self) -> Literal["tokens", "scalar"]:
        return "scalar"

    @property
    def needs_reference(self) -> bool:
        return False

    def at(self, progress: Progress, controllers: Mapping[str, float] = {}) -> BradleyTerry:
        return self

    def sides(self, outputs: Outputs, batch: Batch) -> Tensor:
        """(P, 2) scores."""
        assert outputs.values_NT is not None
        return last(outputs.values_NT, batch.mask_NT).double().view(-1, 2)

    def __call__(self, outputs: Outputs, batch: Batch) -> Loss:
        rewards_P2 = self.sides(outputs, batch)
        asked_P = gap(batch.rewards_N.view(-1, 2)).nan_to_num(0.0) if self.margin else 0.0
        loss_P = bradley_terry(rewards_P2, asked_P, self.center)
        value = (loss_P * pair_weight(batch)).sum()
        with torch.no_grad():
            n = float(rewards_P2.numel())
            found = {"loss/reward_model": Stat("sum", float(value)), **side_stats(rewards_P2)}
            found["rewards/std"] = Stat("std", float(rewards_P2.sum()), n, float((rewards_P2**2).sum()))
            found["tokens/trained"] = Stat("sum", float(batch.mask_NT.sum()))
        return Loss(value, found)


def bradley_terry(rewards_P2: Tensor, margin_P: Tensor | float, center: float) -> Tensor:
    """(P,) losses. log sigmoid stays finite where log(1 + exp(.)) overflows."""
    loss_P = -logsigmoid(gap(rewards_P2) - margin_P)
    return loss_P + center * rewards_P2.sum(1) ** 2 if center else loss_P


def last(x_NT: Tensor, mask_NT: Tensor) -> Tensor:
    """(N,): what stands at each row's last token. By position in the mask, so that a pad id equal to the stop id cannot mislead."""
    positions = torch.arange(mask_NT.shape[1]) * mask_NT
    return x_NT.gather(1, positions.amax(1, keepdim=True))[:, 0]


REWARD_MODEL = BradleyTerry()
