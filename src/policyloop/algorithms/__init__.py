"""Every algorithm on one page: a name, a value. Pure tensors: torch and `types` only.

Add one: a file with the paper, the equation and the composition; one line here; one test; one row in docs/algorithms.md.

Example:
    >>> ALGORITHMS["grpo"].group_size
    8
"""

from __future__ import annotations

from policyloop.algorithms.gfpo import GFPO, GFPO_PAPER
from policyloop.algorithms.grpo import GRPO, GRPO_PAPER
from policyloop.algorithms.loss import Loss, Stat
from policyloop.algorithms.objective import Objective
from policyloop.algorithms.plain import gfpo_loss, group_advantages, grpo_loss
from policyloop.algorithms.policy_gradient import PolicyGradient
from policyloop.algorithms.sft import SFT, Supervised

ALGORITHMS: dict[str, PolicyGradient | Supervised] = {
    "sft": SFT,
    "grpo": GRPO,
    "grpo_paper": GRPO_PAPER,
    "gfpo": GFPO,
    "gfpo_paper": GFPO_PAPER,
}

__all__ = [
    "ALGORITHMS",
    "GFPO",
    "GFPO_PAPER",
    "GRPO",
    "GRPO_PAPER",
    "SFT",
    "Loss",
    "Objective",
    "PolicyGradient",
    "Stat",
    "Supervised",
    "gfpo_loss",
    "group_advantages",
    "grpo_loss",
]
