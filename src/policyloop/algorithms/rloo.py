"""RLOO, REINFORCE Leave-One-Out (2402.14740): the baseline is the mean reward of the others of the group.

    A_i = R_i - mean_{j != i} R_j = G / (G - 1) · (R_i - mean),    R_i <- R_i - β Σ_t k1(π || π_ref)

Token-level clipped ratios by default; `RLOO_SEQUENCE` has TRL's unnormalised ratio of the whole completion, which clips nearly everything
of long answers once the policy has moved.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.parts.advantage import LeaveOneOut
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.ratio import SequenceProductRatio
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.weight import SequenceMean, SequenceSum
from policyloop.algorithms.policy_gradient import PolicyGradient

RLOO = PolicyGradient(
    group_size=4,
    advantage=LeaveOneOut(),
    surrogate=Clip(low=0.2, high=0.2, dual=3.0),
    kl=KL(coef=0.05, estimator="k1", where="reward"),
    weight=SequenceSum(),
)
RLOO_SEQUENCE = replace(RLOO, ratio=SequenceProductRatio(), surrogate=Clip(low=0.2, high=0.2), weight=SequenceMean())
