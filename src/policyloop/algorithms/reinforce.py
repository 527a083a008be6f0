"""REINFORCE (Williams 1992): L = -Σ_t A_i logp_it, mean over completions, A_i = R_i - β Σ_t k1(π || π_ref).

No baseline and no ratio: unbiased, and the noisiest of all; the others are what was invented to calm it.
"""

from __future__ import annotations

from policyloop.algorithms.parts.advantage import RawReward
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.surrogate import Reinforce
from policyloop.algorithms.parts.weight import SequenceSum
from policyloop.algorithms.policy_gradient import PolicyGradient

REINFORCE = PolicyGradient(
    group_size=4,
    advantage=RawReward(),
    surrogate=Reinforce(),
    kl=KL(coef=0.05, estimator="k1", where="reward"),
    weight=SequenceSum(),
)
