"""CISPO, Clipped Importance Sampling Policy Optimization (MiniMax-M1, 2506.13585, eq. 4-5): the weight is clipped, not the update.

    L = -sg(clip(r_t, weight_min, weight_max)) A_i logp_t,    mean over the step's tokens, no KL

Every token keeps a gradient. The bounds are absolute: 5.0 is a weight of five, not 1 + 5.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.parts.surrogate import Cispo

CISPO = replace(GRPO, updates_per_rollout=4, surrogate=Cispo(weight_min=0.0, weight_max=5.0), kl=None)
