"""GRPO, Group Relative Policy Optimization (DeepSeekMath, 2402.03300, eq. 3-4).

    L = - Σ_it w_it min(r_it A_i, clip(r_it, 1 ± 0.2) A_i) + β KL_k3(π || π_ref),    A_i = (R_i - mean_g) / (std_g + eps)

The baseline is the mean reward of the group sampled from the OLD policy; the reference enters only the KL. `GRPO` averages over the step's
tokens (today's default); `GRPO_PAPER` is the paper's mean over completions with β 0.04 and no dual clip.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.weight import SequenceMean
from policyloop.algorithms.policy_gradient import PolicyGradient

GRPO = PolicyGradient(group_size=8, surrogate=Clip(low=0.2, high=0.2, dual=3.0), kl=KL(coef=0.001, estimator="k3"))
GRPO_PAPER = replace(GRPO, surrogate=Clip(low=0.2, high=0.2), weight=SequenceMean(), kl=KL(coef=0.04))
