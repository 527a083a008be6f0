"""GFPO, Group Filtered Policy Optimization (2508.09726, eq. 2 and Algorithm 1): sample G, keep the k best by a metric, learn on those.

    A_i = (R_i - μ) / σ · 1[i retained],   loss summed over the retained, divided by the tokens of all G

A filter in front of GRPO's advantage. `GFPO` takes μ, σ from the full group: measured better, and without the degeneracy that the
paper's retained statistics have when metric and reward are the same thing (`GFPO_PAPER`; see ALGORITHMS §13.4 and docs/log.md).
`GFPO_ADAPTIVE` is Algorithm 2: 8, 8, 6 or 4 of 16 by how hard the prompt is among all seen.
"""

from __future__ import annotations

from dataclasses import replace

from policyloop.algorithms.grpo import GRPO
from policyloop.algorithms.parts.advantage import GroupNorm
from policyloop.algorithms.parts.difficulty import AdaptiveDifficulty
from policyloop.algorithms.parts.entropy import Entropy
from policyloop.algorithms.parts.filter import TopK
from policyloop.algorithms.parts.surrogate import Clip
from policyloop.algorithms.parts.weight import TokenMean

GFPO = replace(
    GRPO,
    filter=TopK(k=4, metric="shortest"),
    advantage=GroupNorm(baseline="group"),
    surrogate=Clip(low=0.2, high=0.28, dual=3.0),
    weight=TokenMean(count="all"),
    entropy=Entropy(coef=0.001),
)
GFPO_ADAPTIVE = replace(GFPO, group_size=16, filter=TopK(metric="shortest", difficulty=AdaptiveDifficulty()))
GFPO_PAPER = replace(GFPO, advantage=GroupNorm(baseline="retained", ddof=0, eps=0.0))


def excess_length_reduction(sft: float, grpo: float, gfpo: float) -> float:
    """ELR (eq. 4): which share of the length that GRPO added to the start's mean length is gone again, 1.0 = all of it."""
    return (grpo - gfpo) / (grpo - sft)
