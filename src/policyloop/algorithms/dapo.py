"""DAPO, Decoupled clip and dynamic sAmpling Policy Optimization (2503.14476): four changes to GRPO.

clip-higher (eq. 10: 0.2 below, 0.28 above), token-level loss (eq. 12), no KL,
dynamic sampling (eq. 11): sample on until enough groups have answers of different RAW outcome,
soft overlong punishment (eq. 13): a reward, `rewards.token_efficiency` with only_if_correct: false; or overlong filtering,
`mask_truncated: true`: what the limit cut off leaves loss and denominators.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.parts.filter import DropConstant
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.weight import TokenMean

DAPO = replace(
    GRPO,
    group_size=16,
    updates_per_rollout=16,
    filter=DropConstant(batches=10),
    surrogate=Clip(low=0.2, high=0.28, dual=3.0),
    kl=None,
    weight=TokenMean(count="retained"),
)
