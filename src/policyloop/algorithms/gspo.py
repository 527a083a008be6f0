"""GSPO, Group Sequence Policy Optimization (2507.18071, eq. 5-7): one ratio per completion, the geometric mean of its tokens'.

    s_i = exp( 1/|o_i| Σ_t (logp_t - old_t) ),    L = -mean_i min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i)

`GSPO_TOKEN` (eq. 13-14) has the same value and, for one advantage per completion, the same gradient, and allows one per token.
Different from GRPO only off-policy, hence 4 updates a rollout; clip shares a hundred times GRPO's are normal.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.parts.ratio import SequenceRatio
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.weight import SequenceMean

GSPO = replace(
    GRPO,
    updates_per_rollout=4,
    ratio=SequenceRatio(),
    surrogate=Clip(low=3e-4, high=4e-4),
    kl=None,
    weight=SequenceMean(),
)
GSPO_TOKEN = replace(GSPO, ratio=SequenceRatio(token=True))
