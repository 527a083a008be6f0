"""ORPO, Odds Ratio Preference Optimization (2403.07691 eq. 6): imitation and preference in one loss, no reference, no SFT before.

L = NLL(chosen) - λ log sigmoid(log odds(chosen) - log odds(rejected)),   odds = p / (1 - p), p = exp(avg log π)
"""

from __future__ import annotations

from policyloop.algorithms.parts.pair import OddsRatio
from policyloop.algorithms.preference import Preference

ORPO = Preference(loss=OddsRatio(beta=0.1))
