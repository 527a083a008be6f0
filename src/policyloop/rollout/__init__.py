"""Rollout: prompts in, scored groups out; groups in, one `Batch` of tensors out. This file holds the settings only (no torch).

Example: 2 prompts, G = 4 -> 2 groups of 4 completions -> Batch with N = 8 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from policyloop.rollout.allocation import AllocationSettings
from policyloop.types import settings


@settings
class RolloutSettings:
    """How training samples.

    engine: a row of ENGINES (`builtin`, `scripted`). engine_options: that engine's own options.
    dtype: number format of the engine's copy of the weights; `auto` follows `training.precision`.
    temperature, top_p, top_k, min_p: sampling; keep the last three off in training, else the sampled distribution is not the policy's.
    max_new_tokens: limit per completion, in tokens. stop: extra stop strings.
    max_lag: policy versions a completion may be behind; this version knows 0 only.
    save: keep every answer a step trains on, `rollouts/<step>.parquet` in the run folder, so that it can be trained on again.
    replay: nothing is sampled for training, the answers come from such files: a folder or file of `save`, or an `offpolicy.parquet`.
    samples: write `samples/` (completions with reward components) at every n-th step; 0 = never.
    allocation: which prompts come next and how many completions each; null = all in turn, group_size each.
    explain_every: at every n-th step the first group's log-probs after the update are stored as well (the report's group picture).
    """

    engine: str = "builtin"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    max_lag: int = 0
    save: bool = False
    replay: str | None = None
    samples: int = 1
    explain_every: int = 5
    allocation: AllocationSettings | None = None
