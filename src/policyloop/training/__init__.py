"""Training: scored groups in, an optimizer step and metrics out. This file holds the settings only (no torch).

Example: `TrainingSettings(steps=20, prompts_per_step=8, lr=2e-4)` with group size 8 trains on 64 sequences a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from policyloop.monitor.guards import Action, limit_of
from policyloop.types import settings


@settings
class SignalCheckSettings:
    """Before the first update: sample some groups and stop when too few of them have any signal.

    prompts: groups to sample. min_share: share of them that must have signal.
    """

    prompts: int = 32
    min_share: float = 0.05


@settings
class HealthSettings:
    """Guards that act.

    max_bad_steps: non-finite updates in a row (each skipped, dumped, counted) before the last good checkpoint is restored and
    the run stops. max_skipped_steps: steps without any trainable row in a row before the run stops.
    actions: guard -> what it does beyond speaking, where its default is not wanted: `warn` (speak only), `lower_lr` (half), `raise_kl`
    (1.5 times), `shrink_clip` (0.8 times), `stop`, `restore` (stop at the best checkpoint).
    Every other key is the limit of the guard of that name; null switches it off.
    """

    max_bad_steps: int = 5
    max_skipped_steps: int = 10
    actions: Mapping[str, Action] = field(default_factory=dict)
    non_finite: float | None = limit_of("non_finite")
    update_success_warn: float | None = limit_of("update_success_warn")
    grad_norm_alarm: float | None = limit_of("grad_norm_alarm")
    grad_norm_warn: float | None = limit_of("grad_norm_warn")
    grad_norm_spike: float | None = limit_of("grad_norm_spike")
    kl_alarm: float | None = limit_of("kl_alarm")
    ref_kl_warn: float | None = limit_of("ref_kl_warn")
    clip_warn: float | None = limit_of("clip_warn")
    mismatch_alarm: float | None = limit_of("mismatch_alarm")
    mismatch_kl_alarm: float | None = limit_of("mismatch_kl_alarm")
    value_error_warn: float | None = limit_of("value_error_warn")
    explained_variance_warn: float | None = limit_of("explained_variance_warn")
    entropy_low: float | None = limit_of("entropy_low")
    entropy_high: float | None = limit_of("entropy_high")
    entropy_fall: float | None = limit_of("entropy_fall")
    zero_std_warn: float | None = limit_of("zero_std_warn")
    all_wrong_warn: float | None = limit_of("all_wrong_warn")
    all_correct_warn: float | None = limit_of("all_correct_warn")
    retained_zero_std_alarm: float | None = limit_of("retained_zero_std_alarm")
    truncated_warn: float | None = limit_of("truncated_warn")
    length_growth_warn: float | None = limit_of("length_growth_warn")
    length_collapse_warn: float | None = limit_of("length_collapse_warn")
    unscored_warn: float | None = limit_of("unscored_warn")
    range_warn: float | None = limit_of("range_warn")
    dominance_warn: float | None = limit_of("dominance_warn")
    length_reward_warn: float | None = limit_of("length_reward_warn")
    reward_drift_warn: float | None = limit_of("reward_drift_warn")
    accuracy_below_start: float | None = limit_of("accuracy_below_start")
    accuracy_falling: float | None = limit_of("accuracy_falling")


@settings
class ResourceSettings:
    """gpus: how many the job asks for; null = as `training.device` says, 0 = the CPU, 1 = one GPU."""

    gpus: int | None = None


@settings
class DistSettings:
    """Several processes, started by torchrun or `train --launcher torchrun`; in one process nothing of this acts.

    strategy: ddp = a whole model on every rank, fsdp2 = weights, gradients and optimizer in shards (`fully_shard`).
    backend: auto = gloo on CPUs, nccl on GPUs. timeout_s: how long a rank waits for the others in one collective before the run ends;
    longer than the longest held-out evaluation or reward time-out.
    master_port: the rendezvous (TCPStore) port of torch.distributed; NCCL opens further ports itself.
    """

    strategy: Literal["ddp", "fsdp2"] = "ddp"
    backend: str = "auto"
    timeout_s: float = 1800.0
    master_port: int = 29500


@settings
class TrainingSettings:
    """The update and the run.

    steps / epochs: whichever ends first. prompts_per_step: prompts of one rollout. batch_size: sequences per optimizer step =
    prompts_per_step × group_size / updates_per_rollout = per_device_train_batch_size × grad_accum × ranks; give any, the plan
    derives the rest. per_device_train_batch_size, grad_accum: how it is put together. micro_batch_tokens: tokens of one forward (halved for good when memory runs out).
    lr: null = 3e-5 with LoRA, 1e-6 for full fine-tuning. lr_schedule: its course over the planned updates after the warm-up.
    warmup_steps: updates in which the learning rate rises from 0.
    betas, eps, weight_decay: AdamW. max_grad_norm: clip, null = off.
    precision: auto = bf16 where the chip does it fast, else fp16 with scaler on CUDA, else fp32; log-probs and losses always fp32.
    save_steps: steps between checkpoints (the last step is always saved). keep_last, keep_best: retention.
    async_save: write in the background (snapshot first, one in flight). second_destination: a folder or s3://bucket/prefix that gets a copy of each.
    save_grace_s: seconds within which a SIGTERM'd run has saved and left. seed: of data order and sampling.
    threads: CPU threads (null = all cores); bit-for-bit resume needs the same number.
    early_stop: evaluations without a new best before the run stops; null = never. device: auto, cpu, cuda.
    """

    steps: int | None = None
    epochs: float | None = None
    prompts_per_step: int | None = None
    batch_size: int | None = None
    per_device_train_batch_size: int | None = None
    grad_accum: int | None = None
    micro_batch_tokens: int = 4096
    lr: float | None = None
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: str = "auto"
    save_steps: int = 1000
    keep_last: int = 2
    keep_best: int = 1
    async_save: bool = False
    second_destination: str | None = None
    save_grace_s: float = 30.0
    seed: int = 0
    threads: int | None = None
    early_stop: int | None = None
    signal_check: SignalCheckSettings | None = field(default_factory=SignalCheckSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    resources: ResourceSettings = field(default_factory=ResourceSettings)
    dist: DistSettings = field(default_factory=DistSettings)
