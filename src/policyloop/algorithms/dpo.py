"""DPO, Direct Preference Optimization (2305.18290 eq. 7), and its variants on the same margin h.

    L = -log sigmoid(β h),   h = (log π(chosen) - log π(rejected)) - (log π_ref(chosen) - log π_ref(rejected)),   sums over tokens

cDPO smooths the labels (Mitchell 2023, eq. 3), rDPO makes that unbiased (2403.00409), IPO regresses h to 1/(2β) (2310.12036 eq. 17, on
per-token averages; `loss: {squared: {average: false}}` for sums), hinge is SLiC's loss on the same margin.
"""

from __future__ import annotations

from policyloop.algorithms.parts.pair import Hinge, Robust, Sigmoid, Squared
from policyloop.algorithms.preference import Preference

DPO = Preference(loss=Sigmoid(beta=0.1))
CDPO = Preference(loss=Sigmoid(beta=0.1, label_smoothing=0.1))
RDPO = Preference(loss=Robust(beta=0.1, label_smoothing=0.1))
IPO = Preference(loss=Squared(beta=0.1))
HINGE = Preference(loss=Hinge(beta=0.1))
