"""Other spellings of a recipe's keys, in tables: those that are accepted (ALIASES, TABLES) and those that are answered with ours (FOREIGN).

In: the tree of a YAML file. Out: the same tree in our own keys.

Example:
    >>> translate({"rl_strategy": {"sampling_count": 8, "filter_mechanism": {"enabled": True, "top_k": 2}}})
    {'rl_strategy': {'group_size': 8, 'filter': {'top_k': {'k': 2}}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from policyloop.config import convert, spelled
from policyloop.errors import BadInput

# accepted, and meaning the same
ALIASES: dict[str, str] = {
    "model.path": "model.base_model_path",
    "rl_strategy.sampling_count": "rl_strategy.group_size",
    "rl_strategy.num_generations": "rl_strategy.group_size",
    "rl_strategy.filter_mechanism.top_k": "rl_strategy.filter_mechanism.k",
    "rollout.max_completion_length": "rollout.max_new_tokens",
    "training.gradient_accumulation_steps": "training.grad_accum",
    "training.learning_rate": "training.lr",
    "training.num_train_epochs": "training.epochs",
    "training.max_steps": "training.steps",
}

# tables with an `enabled` of their own: what `enabled: false` sets to null, and where the other fields go
TABLES: dict[str, tuple[str, str]] = {
    "rl_strategy.filter_mechanism": ("rl_strategy.filter", "rl_strategy.filter.top_k"),
    "rl_strategy.token_efficiency_reward": ("rewards.token_efficiency", "rewards.token_efficiency"),
}

_EVERY_STEP = "nothing: every step is logged"
_NEVER_CUT = "nothing: prompts are never cut silently"
_DYNAMIC = "rl_strategy.filter: drop_constant"
_CLIP = "rl_strategy.surrogate.clip.low and .high"
_LORA = "model.lora (null = full fine-tuning)"

# not accepted: where the meaning of a key lives here
FOREIGN: dict[str, str] = {
    # Hugging Face trainer, TRL
    "model_name_or_path": "model.base_model_path",
    "use_peft": _LORA,
    "lora_r": "model.lora.r",
    "lora_alpha": "model.lora.alpha",
    "lora_dropout": "model.lora.dropout",
    "lora_target_modules": "model.lora.target_modules",
    "torch_dtype": "training.precision",
    "chat_template_path": "model.template",
    "dataset_name": "data.task or data.path",
    "dataset_train_split": "data.path",
    "dataset_test_split": "data.eval",
    "num_generations": "rl_strategy.group_size",
    "generation_batch_size": "training.prompts_per_step x rl_strategy.group_size",
    "steps_per_generation": "rl_strategy.updates_per_rollout",
    "num_iterations": "rl_strategy.updates_per_rollout",
    "epsilon": _CLIP,
    "epsilon_high": "rl_strategy.surrogate.clip.high",
    "delta": "rl_strategy.surrogate.clip.dual",
    "beta": "rl_strategy.kl.coef",
    "loss_type": "rl_strategy.type or rl_strategy.weight",
    "scale_rewards": "rl_strategy.advantage.group.std",
    "importance_sampling_level": "rl_strategy.ratio",
    "vllm_importance_sampling_correction": "rl_strategy.correction",
    "mask_truncated_completions": "rl_strategy.mask_truncated",
    "max_completion_length": "rollout.max_new_tokens",
    "max_length": "rollout.max_new_tokens",
    "max_prompt_length": _NEVER_CUT,
    "repetition_penalty": "nothing: the sampled distribution would be another than the policy's",
    "use_vllm": "rollout.engine",
    "vllm_mode": "rollout.engine_options",
    "reward_weights": "rewards.terms[].weight",
    "reward_funcs": "rewards.terms",
    "sync_ref_model": "model.reference_model_freeze: false",
    "ref_model_sync_steps": "model.reference_sync_steps",
    "learning_rate": "training.lr",
    "lr_scheduler_type": "training.lr_schedule",
    "warmup_ratio": "training.warmup_steps",
    "adam_beta1": "training.betas",
    "adam_beta2": "training.betas",
    "adam_epsilon": "training.eps",
    "optim": "nothing: AdamW",
    "max_steps": "training.steps",
    "num_train_epochs": "training.epochs",
    "gradient_accumulation_steps": "training.grad_accum",
    "per_device_eval_batch_size": "nothing: the engine fills itself",
    "bf16": "training.precision: bf16",
    "fp16": "training.precision: fp16",
    "logging_steps": _EVERY_STEP,
    "log_completions": "rollout.samples",
    "output_dir": "--run",
    "resume_from_checkpoint": "--resume auto",
    "save_strategy": "training.save_steps",
    "save_total_limit": "training.keep_last",
    "load_best_model_at_end": "training.keep_best",
    "metric_for_best_model": "evaluation.metric",
    "greater_is_better": "evaluation.better",
    "eval_strategy": "evaluation.every",
    "eval_steps": "evaluation.every",
    "report_to": "monitor.trackers",
    "run_name": "--run",
    # verl
    "actor_rollout_ref": "model, rollout and training",
    "algorithm": "rl_strategy",
    "trainer": "training and evaluation",
    "critic": "rl_strategy.value",
    "reward_model": "rewards",
    "custom_reward_function": "rewards.terms: [file.py:function]",
    "adv_estimator": "rl_strategy.type",
    "norm_adv_by_std_in_grpo": "rl_strategy.advantage.group.std",
    "train_batch_size": "training.prompts_per_step",
    "train_files": "data.path",
    "val_files": "data.eval",
    "prompt_key": "data.columns",
    "ppo_mini_batch_size": "training.batch_size",
    "ppo_micro_batch_size": "training.per_device_train_batch_size",
    "ppo_micro_batch_size_per_gpu": "training.per_device_train_batch_size",
    "ppo_max_token_len_per_gpu": "training.micro_batch_tokens",
    "ppo_epochs": "rl_strategy.updates_per_rollout",
    "clip_ratio": _CLIP,
    "clip_ratio_low": "rl_strategy.surrogate.clip.low",
    "clip_ratio_high": "rl_strategy.surrogate.clip.high",
    "clip_ratio_c": "rl_strategy.surrogate.clip.dual",
    "use_kl_loss": "rl_strategy.kl (null = none)",
    "use_kl_in_reward": "rl_strategy.kl.where: reward",
    "kl_loss_coef": "rl_strategy.kl.coef",
    "kl_loss_type": "rl_strategy.kl.estimator",
    "entropy_coeff": "rl_strategy.entropy.coef",
    "loss_agg_mode": "rl_strategy.weight",
    "filter_groups": _DYNAMIC,
    "response_length": "rollout.max_new_tokens",
    "max_response_length": "rollout.max_new_tokens",
    "total_epochs": "training.epochs",
    "total_training_steps": "training.steps",
    "grad_clip": "training.max_grad_norm",
    "n_gpus_per_node": "training.resources.gpus",
    "save_freq": "training.save_steps",
    "test_freq": "evaluation.every",
    "logger": "monitor.trackers",
    "project_name": "monitor.project",
    "experiment_name": "--run",
    "default_local_dir": "--run",
    # ms-swift, LLaMA-Factory
    "stage": "rl_strategy.type",
    "rlhf_type": "rl_strategy.type",
    "advantage_estimator": "rl_strategy.advantage",
    "dynamic_sample": _DYNAMIC,
    "train_type": _LORA,
    "tuner_type": _LORA,
    "finetuning_type": _LORA,
    "adapters": "model.base_model_path (an adapter folder)",
    "adapter_name_or_path": "model.base_model_path (an adapter folder)",
    "lora_rank": "model.lora.r",
    "lora_target": "model.lora.target_modules",
    "target_modules": "model.lora.target_modules",
    "dataset": "data.task or data.path",
    "dataset_dir": "data.path",
    "val_dataset": "data.eval",
    "val_size": "data.held_out_share",
    "split_dataset_ratio": "data.held_out_share",
    "cutoff_len": "rollout.max_new_tokens",
    "pref_beta": "rl_strategy.kl.coef",
    "external_plugins": "rewards.terms: [file.py:function]",
}


class _Missing:
    """What is not there; null is a value of its own."""


MISSING = _Missing()


def translate(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Our own keys for all others. Errors: BadInput where two spellings of one thing differ."""
    out = {room: spelled(body, room) if isinstance(body, Mapping) else body for room, body in spelled(tree, "").items()}
    if isinstance(out.get("rewards"), list):
        out["rewards"] = {"terms": out["rewards"]}
    for old, new in ALIASES.items():
        if (value := _take(out, old)) is not MISSING:
            out = _put(out, new, value, old)
    for old, (slot, fields) in TABLES.items():
        table = _take(out, old)
        if table is None or (isinstance(table, Mapping) and not _enabled(table, old)):
            out = _put(out, slot, None, old)
        elif isinstance(table, Mapping):
            rest = {key: value for key, value in table.items() if key != "enabled"}
            out = _put(out, fields, {}, old)
            for key, value in rest.items():
                out = _put(out, f"{fields}.{key}", value, f"{old}.{key}")
        elif table is not MISSING:
            raise BadInput(f"{old} = {table!r}", "a table with enabled and its fields, or null", old)
    return out


def _enabled(table: Mapping[str, Any], where: str) -> bool:
    return convert(bool, table.get("enabled", True), f"{where}.enabled")


def _take(tree: dict[str, Any], path: str) -> Any:
    """The value at a dotted path, taken out of the tree (tables on the way are copied first); MISSING where there is none."""
    head, _, rest = path.partition(".")
    if head not in tree or not rest:
        return tree.pop(head, MISSING)
    if not isinstance(tree[head], Mapping):
        return MISSING
    tree[head] = dict(tree[head])
    return _take(tree[head], rest)


def _put(tree: Mapping[str, Any], path: str, value: Any, said: str, where: str = "") -> dict[str, Any]:
    """The tree with `value` at the dotted path. What already stands there must be the same; an empty table only has to find a table."""
    head, _, rest = path.partition(".")
    here, old = f"{where}{head}", tree.get(head, MISSING)
    if rest or value == {}:
        if old is not MISSING and not isinstance(old, Mapping):
            raise BadInput(f"{said} and {here}: {'null' if old is None else old}", "one of the two", here)
        inner: Mapping[str, Any] = old if isinstance(old, Mapping) else {}
        return {**tree, head: _put(inner, rest, value, said, f"{here}.") if rest else inner}
    if old is not MISSING and old != value:
        raise BadInput(f"{said} = {value} and {here} = {old}", "one of the two", here)
    return {**tree, head: value}
