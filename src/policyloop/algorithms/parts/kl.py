"""KL(policy || reference) per token from x = logprobs - ref_logprobs, in the loss or in the reward (ALGORITHMS §2.5).

Example (k3, x = 0.1): expm1(-0.1) + 0.1 = 0.00484.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from policyloop.algorithms.parts.controller import AdaptiveKL, Controller
from policyloop.algorithms.parts.schedule import Number, plain
from policyloop.types import settings

Estimator = Literal["k1", "k2", "k3", "k3_st"]


def estimate(logprobs_NT: Tensor, ref_NT: Tensor, mask_NT: Tensor, estimator: Estimator) -> Tensor:
    """(N, T), 0 off the mask. The input is clamped at ±20 before exp and k3's value at 10, so value and gradient stay finite."""
    policy = torch.where(mask_NT, logprobs_NT, 0.0).clamp_min(-1e4)
    ref = torch.where(mask_NT, ref_NT, 0.0).clamp_min(-1e4)
    x = (policy - ref).clamp(-20, 20)
    if estimator == "k1":
        return x
    k2 = x**2 / 2
    if estimator == "k2":
        return k2
    k3 = (torch.expm1(-x) + x).clamp(-10, 10)
    # straight-through: the value of k3, the gradient of k2 (whose expectation is the gradient of the KL)
    return k3 if estimator == "k3" else k2 + (k3 - k2).detach()


@settings
class KL:
    """coef · KL against the frozen reference. estimator k3 (GRPO eq. 4) or k3_st (better founded gradient) in the loss, k1 in the reward.

    target_per_sequence (nats summed over a completion; OpenAI 6) or target_per_token (nats; verl 0.1), at most one, makes coef adaptive:
    coef *= 1 + clip(KL / target - 1, ±0.2) · completions / horizon after each rollout.
    """

    coef: Number = 0.001
    estimator: Estimator = "k3"
    where: Literal["loss", "reward"] = "loss"
    target_per_sequence: float | None = None
    target_per_token: float | None = None
    horizon: int = 10_000

    def __post_init__(self) -> None:
        if self.estimator == "k1" and self.where == "loss":
            raise ValueError("kl.estimator k1 has no useful gradient in the loss; use k3, k3_st or k2 there, or kl.where: reward")
        if self.target_per_sequence is not None and self.target_per_token is not None:
            raise ValueError("kl.target_per_sequence and kl.target_per_token are both set: one unit, please")
        targets = [t for t in (self.target_per_sequence, self.target_per_token) if t is not None]
        if self.horizon < 1 or any(t <= 0 for t in targets):
            raise ValueError("a KL target and its horizon are above 0")
        if targets and not isinstance(self.coef, (int, float)):
            raise ValueError("kl.coef is a schedule and has a target: one of the two moves it")

    def __call__(self, logprobs_NT: Tensor, ref_NT: Tensor, mask_NT: Tensor) -> Tensor:
        return estimate(logprobs_NT, ref_NT, mask_NT, self.estimator)

    def controllers(self) -> dict[str, Controller]:
        """What moves `coef`, where it has a target."""
        if self.target_per_sequence is not None:
            return {"coef": AdaptiveKL(plain(self.coef), self.target_per_sequence, self.horizon, "per_sequence")}
        if self.target_per_token is not None:
            return {"coef": AdaptiveKL(plain(self.coef), self.target_per_token, self.horizon, "per_token")}
        return {}
