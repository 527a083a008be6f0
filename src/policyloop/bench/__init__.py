"""Measuring on the machine at hand: rollout and update of one GRPO step, against floors measured in the same run.

In: a model and a `Shape`. Out: seconds per part, tokens and samples per second, time over floor; a verdict against limits of the
user's own (`slo.py`). Nothing here is a constant from a page: machines differ, and so do two minutes on a busy one.

Example: `policyloop bench train smollm2-135m-instruct --prompts 4 --group 8 --tokens 64 --rounds 3`
"""

from __future__ import annotations

from typing import Literal

from policyloop.types import settings


@settings
class Shape:
    """One step: `prompts` groups of `group` completions of exactly `tokens` tokens each (no stop token ends one).

    kept: completions of each group that the update learns from (GFPO), 0 = all. lora_r: 0 = full fine-tuning.
    precision: of the frozen weights; what trains is float32. rounds: measured steps after one that warms up.
    """

    prompts: int = 4
    group: int = 8
    tokens: int = 64
    kept: int = 0
    lora_r: int = 16
    precision: Literal["fp32", "bf16"] = "fp32"
    rounds: int = 3
    threads: int = 1
