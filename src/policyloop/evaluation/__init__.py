"""Evaluation: is it better, and how sure are we. This file holds the settings (no torch)."""

from __future__ import annotations

from typing import Literal

from policyloop.types import settings


@settings
class EvaluationSettings:
    """Held-out evaluation during training and by the verbs.

    every: steps between evaluations during training, 0 = none. prompts: how many held-out prompts.
    metric, better: the figure that alone decides "best" (retention, early stop, export).
    max_new_tokens: null = rollout.max_new_tokens. temperature: 0 = greedy. samples: answers per prompt (pass@k when above 1).
    seed: of held-out texts and of sampling.
    """

    every: int = 0
    prompts: int = 96
    metric: str = "accuracy"
    better: Literal["higher", "lower"] = "higher"
    max_new_tokens: int | None = None
    temperature: float = 0.0
    samples: int = 1
    seed: int = 1
