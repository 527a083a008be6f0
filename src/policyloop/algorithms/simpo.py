"""SimPO, Simple Preference Optimization (2405.14734 eq. 6): no reference, log-probs averaged over tokens, a target margin γ.

L = -log sigmoid(β (avg log π(chosen) - avg log π(rejected)) - γ)
"""

from __future__ import annotations

from policyloop.algorithms.parts.pair import LengthNormalised
from policyloop.algorithms.preference import Preference

SIMPO = Preference(loss=LengthNormalised(beta=2.0, gamma=0.5))
