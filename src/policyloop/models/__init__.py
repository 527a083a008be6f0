"""Models: any Hugging Face causal LM by folder, catalogue name or hub id; its template, its adapter, its log-probs.

This file holds the settings and imports no torch.
"""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from policyloop.types import settings


@settings
class LoraSettings:
    """r, alpha: rank and scale (W + alpha/r · B A). target_modules: names, or `all-linear`. dropout: supervised training only, RL
    forwards run without."""

    r: int = 16
    alpha: int = 32
    target_modules: tuple[str, ...] | Literal["all-linear"] = ("q_proj", "v_proj")
    dropout: float = 0.0


@settings
class CriticSettings:
    """The critic of algorithms that have one (PPO): a model of its own with a value head of zeros.

    base_model_path: where its trunk starts (a reward model, an earlier `value_net/` folder); null = where the policy starts. lr, betas,
    max_grad_norm: its own AdamW. warmup_steps: rollouts on which the critic learns alone, the policy frozen. service: host:port of value
    services that hold the critic instead (its folder and lr are theirs then). service_timeout_s: deadline of one call.
    """

    base_model_path: str | None = None
    lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float | None = 1.0
    warmup_steps: int = 10
    service: tuple[str, ...] = ()
    service_timeout_s: float = 60.0


@settings
class ModelSettings:
    """base_model_path: a folder, a catalogue name (`smollm2-135m-instruct`, `tiny`) or a hub id.

    reference_model_freeze: true keeps the KL anchor as it was at the start; false lets it follow the policy.
    reference_sync_steps: steps between the copies of a reference that follows. lora: null = full fine-tuning. gradient_checkpointing: auto = only when memory asks.
    template: null = the model's own chat template, `plain` = text as it is (base models). critic: used where the algorithm has a value loss.
    """

    base_model_path: str
    reference_model_freeze: bool = True
    reference_sync_steps: int | None = None
    lora: LoraSettings | None = field(default_factory=LoraSettings)
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    template: str | None = None
    critic: CriticSettings = field(default_factory=CriticSettings)
