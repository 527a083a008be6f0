"""Dr.GRPO, GRPO Done Right (2503.20783): no division by the standard deviation, and a constant in place of the length.

    A_i = R_i - mean_g,    L = mean_i Σ_t L_it / L_max

L_max (`weight.constant.max_tokens`) is the configured limit of a completion, never the padding: set it to rollout.max_new_tokens.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.parts.advantage import GroupNorm
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.weight import Constant

DRGRPO = replace(
    GRPO, advantage=GroupNorm(std="none"), surrogate=Clip(low=0.2, high=0.2), kl=None, weight=Constant(max_tokens=256)
)
