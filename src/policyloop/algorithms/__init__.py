"""Every algorithm on one page: a name, a value. Pure tensors: torch and `types` only.

Add one: a file with the paper, the equation and the composition; one line here; one test; one row in docs/algorithms.md.

Example:
    >>> ALGORITHMS["grpo"].group_size
    8
"""

from __future__ import annotations

from policyloop.algorithms.cispo import CISPO
from policyloop.algorithms.dapo import DAPO
from policyloop.algorithms.dpo import CDPO, DPO, HINGE, IPO, RDPO
from policyloop.algorithms.drgrpo import DRGRPO
from policyloop.algorithms.gfpo import GFPO, GFPO_ADAPTIVE, GFPO_PAPER
from policyloop.algorithms.grpo import GRPO, GRPO_PAPER
from policyloop.algorithms.gspo import GSPO, GSPO_TOKEN
from policyloop.algorithms.loss import Loss, Stat
from policyloop.algorithms.objective import Objective
from policyloop.algorithms.orpo import ORPO
from policyloop.algorithms.plain import (
    cispo_loss,
    dapo_loss,
    drgrpo_loss,
    gae_advantages,
    gfpo_loss,
    group_advantages,
    grpo_loss,
    gspo_loss,
    policy_loss,
    ppo_loss,
    reinforce_loss,
    rloo_loss,
)
from policyloop.algorithms.policy_gradient import PolicyGradient
from policyloop.algorithms.ppo import PPO
from policyloop.algorithms.preference import Preference
from policyloop.algorithms.reinforce import REINFORCE
from policyloop.algorithms.reinforce_pp import REINFORCE_PP, REINFORCE_PP_BASELINE
from policyloop.algorithms.reward_model import REWARD_MODEL, BradleyTerry
from policyloop.algorithms.rloo import RLOO, RLOO_SEQUENCE
from policyloop.algorithms.sft import SFT, Supervised
from policyloop.algorithms.simpo import SIMPO

Strategy = PolicyGradient | Supervised | Preference | BradleyTerry

ALGORITHMS: dict[str, Strategy] = {
    "sft": SFT,
    "reward_model": REWARD_MODEL,
    "dpo": DPO,
    "cdpo": CDPO,
    "rdpo": RDPO,
    "ipo": IPO,
    "hinge": HINGE,
    "simpo": SIMPO,
    "orpo": ORPO,
    "grpo": GRPO,
    "grpo_paper": GRPO_PAPER,
    "gfpo": GFPO,
    "gfpo_paper": GFPO_PAPER,
    "gfpo_adaptive": GFPO_ADAPTIVE,
    "drgrpo": DRGRPO,
    "dapo": DAPO,
    "cispo": CISPO,
    "gspo": GSPO,
    "gspo_token": GSPO_TOKEN,
    "ppo": PPO,
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "rloo_sequence": RLOO_SEQUENCE,
    "reinforce++": REINFORCE_PP,
    "reinforce++_baseline": REINFORCE_PP_BASELINE,
}

__all__ = [
    "ALGORITHMS",
    "CDPO",
    "CISPO",
    "DAPO",
    "DPO",
    "DRGRPO",
    "GFPO",
    "GFPO_ADAPTIVE",
    "GFPO_PAPER",
    "GRPO",
    "GRPO_PAPER",
    "GSPO",
    "GSPO_TOKEN",
    "HINGE",
    "IPO",
    "ORPO",
    "PPO",
    "RDPO",
    "REINFORCE",
    "REINFORCE_PP",
    "REINFORCE_PP_BASELINE",
    "REWARD_MODEL",
    "RLOO",
    "RLOO_SEQUENCE",
    "SFT",
    "SIMPO",
    "BradleyTerry",
    "Loss",
    "Objective",
    "PolicyGradient",
    "Preference",
    "Stat",
    "Strategy",
    "Supervised",
    "cispo_loss",
    "dapo_loss",
    "drgrpo_loss",
    "gae_advantages",
    "gfpo_loss",
    "group_advantages",
    "grpo_loss",
    "gspo_loss",
    "policy_loss",
    "ppo_loss",
    "reinforce_loss",
    "rloo_loss",
]
