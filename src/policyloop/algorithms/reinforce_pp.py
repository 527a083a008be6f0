"""REINFORCE++ (2501.03262): token rewards with the KL in them, discounted return-to-go, whitened over all tokens of the batch.

    r_t = [t last] R - β k1_t,    A_t = whiten(Σ_{s >= t} γ^{s-t} r_s)

`REINFORCE_PP_BASELINE` takes the group's mean reward off first. Whitening weighs tokens, so long answers dominate its mean.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.parts.advantage import ReturnToGo
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.policy_gradient import PolicyGradient

REINFORCE_PP = PolicyGradient(
    group_size=4,
    advantage=ReturnToGo(),
    surrogate=Clip(low=0.2, high=0.2, dual=3.0),
    kl=KL(coef=0.05, estimator="k1", where="reward"),
)
REINFORCE_PP_BASELINE = replace(REINFORCE_PP, advantage=ReturnToGo(baseline="group"))
