"""Losses on pairs: (logprobs_P2, ref_logprobs_P2 or None, length_P2) -> loss_P; column 0 is the chosen side, column 1 the rejected one.

Log-probs are sums over a side's completion tokens. h = (chosen - rejected) - (the same of the reference); no reference counts as 0.
`rewards` (P, 2) is what the loss makes of each side: the implicit reward, whose difference is the margin.

Example (beta 0.1, log-probs -10 and -12, reference -11 and -11): h = 2, loss = -log sigmoid(0.2) = 0.598.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from policyloop.types import settings


class PairLoss(Protocol):
    """`uses_reference`: whether the frozen reference's log-probs enter."""

    uses_reference: ClassVar[bool]

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor: ...

    def rewards(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor: ...


def gain(logprobs: Tensor, ref: Tensor | None) -> Tensor:
    """log(policy / reference) per side."""
    return logprobs if ref is None else logprobs - ref


def gap(x_P2: Tensor) -> Tensor:
    """Chosen minus rejected."""
    return x_P2[:, 0] - x_P2[:, 1]


@settings
class Sigmoid:
    """DPO (2305.18290 eq. 7): -log sigmoid(beta h). label_smoothing e > 0 is cDPO: -(1-e) log sigmoid(beta h) - e log sigmoid(-beta h)."""

    uses_reference: ClassVar[bool] = True

    beta: float = 0.1
    label_smoothing: float = 0.0

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        z, e = gap(self.rewards(logprobs_P2, ref_logprobs_P2, length_P2)), self.label_smoothing
        return -(1 - e) * logsigmoid(z) - e * logsigmoid(-z)

    def rewards(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return self.beta * gain(logprobs_P2, ref_logprobs_P2)


@settings
class Robust(Sigmoid):
    """rDPO (2403.00409): unbiased when a share label_smoothing e < 0.5 of the labels is flipped,
    (-(1-e) log sigmoid(beta h) + e log sigmoid(-beta h)) / (1-2e). beta as in DPO."""

    label_smoothing: float = 0.1

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        z, e = gap(self.rewards(logprobs_P2, ref_logprobs_P2, length_P2)), self.label_smoothing
        return (-(1 - e) * logsigmoid(z) + e * logsigmoid(-z)) / (1 - 2 * e)


@settings
class Hinge:
    """SLiC's hinge (2309.06657) on DPO's margin: max(0, 1 - beta h)."""

    uses_reference: ClassVar[bool] = True

    beta: float = 0.1

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return relu(1 - gap(self.rewards(logprobs_P2, ref_logprobs_P2, length_P2)))

    def rewards(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return self.beta * gain(logprobs_P2, ref_logprobs_P2)


@settings
class Squared:
    """IPO (2310.12036 eq. 17): (h - 1 / (2 beta))². average: h from per-token averages of each side (the authors' later word), else sums."""

    uses_reference: ClassVar[bool] = True

    beta: float = 0.1
    average: bool = True

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        x_P2 = gain(logprobs_P2, ref_logprobs_P2)
        return (gap(x_P2 / length_P2 if self.average else x_P2) - 1 / (2 * self.beta)) ** 2

    def rewards(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return self.beta * gain(logprobs_P2, ref_logprobs_P2)


@settings
class LengthNormalised:
    """SimPO (2405.14734 eq. 6): -log sigmoid(beta (avg_chosen - avg_rejected) - gamma), without a reference."""

    uses_reference: ClassVar[bool] = False

    beta: float = 2.0
    gamma: float = 0.5

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return -logsigmoid(gap(self.rewards(logprobs_P2, None, length_P2)) - self.gamma)

    def rewards(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return self.beta * logprobs_P2 / length_P2


@settings
class OddsRatio:
    """ORPO (2403.07691 eq. 6): nll · (-avg_chosen) - beta · log sigmoid(log odds ratio), log odds = avg - log(1 - exp(avg)). nll 0 leaves
    the odds-ratio term alone."""

    uses_reference: ClassVar[bool] = False

    beta: float = 0.1
    nll: float = 1.0

    def __call__(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        average_P2 = logprobs_P2 / length_P2
        odds_P2 = average_P2 - log1mexp(average_P2)
        return -self.nll * average_P2[:, 0] - self.beta * logsigmoid(gap(odds_P2))

    def rewards(self, logprobs_P2: Tensor, ref_logprobs_P2: Tensor | None, length_P2: Tensor) -> Tensor:
        return self.beta * logprobs_P2 / length_P2


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0, exact at both ends; x is kept a hair below 0, where a certain model would give -inf."""
    x = x.clamp_max(-1e-7)
    near = x > -0.6931
    small = torch.where(near, x, -1.0)  # the other branch gets a harmless value, so that its gradient stays finite
    large = torch.where(near, -1.0, x)
    return torch.where(near, torch.log(-torch.expm1(small)), torch.log1p(-torch.exp(large)))


PAIR_LOSSES: dict[str, type] = {
    "sigmoid": Sigmoid,
    "robust": Robust,
    "hinge": Hinge,
    "squared": Squared,
    "length_normalised": LengthNormalised,
    "odds_ratio": OddsRatio,
}
