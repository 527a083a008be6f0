"""A run's typed tree from every room's settings, other spellings of its keys, and the plan: what will be computed before anything is.

Example:
    >>> recipe = load(Path("recipes/tiny-grpo.yaml"), ["training.steps=5"])
    >>> plan(recipe, prompts=500).lines()
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from policyloop.algorithms import ALGORITHMS, PolicyGradient, Supervised
from policyloop.algorithms.parts.advantage import GAE, GroupNorm, LeaveOneOut, ReturnToGo
from policyloop.algorithms.parts.filter import TopK
from policyloop.config import build, lay_over, load_yaml, override, to_tree
from policyloop.errors import BadInput
from policyloop.evaluation import EvaluationSettings
from policyloop.models import ModelSettings
from policyloop.monitor import MonitorSettings
from policyloop.rewards import RewardsSettings
from policyloop.rollout import RolloutSettings
from policyloop.tasks import DataSettings
from policyloop.training import TrainingSettings
from policyloop.types import settings


@settings
class Recipe:
    """Everything a run is made from; the same tree lies in its manifest."""

    model: ModelSettings
    data: DataSettings = field(default_factory=DataSettings)
    rewards: RewardsSettings = field(default_factory=RewardsSettings)
    rl_strategy: PolicyGradient | Supervised = field(default_factory=lambda: ALGORITHMS["grpo"])
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)


ROOMS: dict[str, type] = {
    "model": ModelSettings,
    "data": DataSettings,
    "rewards": RewardsSettings,
    "rollout": RolloutSettings,
    "training": TrainingSettings,
    "evaluation": EvaluationSettings,
    "monitor": MonitorSettings,
}

# --- other spellings --------------------------------------------------------------------------------------------------------

ALIASES: dict[str, str] = {
    "rl_strategy.sampling_count": "rl_strategy.group_size",
    "rl_strategy.num_generations": "rl_strategy.group_size",
    "training.batch-size": "training.batch_size",
    "training.gradient_accumulation_steps": "training.grad_accum",
    "training.learning_rate": "training.lr",
    "training.num_train_epochs": "training.epochs",
    "training.max_steps": "training.steps",
    "model.path": "model.base_model_path",
    "rollout.max_completion_length": "rollout.max_new_tokens",
}

FOREIGN: dict[str, str] = {
    # TRL
    "num_generations": "rl_strategy.group_size",
    "epsilon": "rl_strategy.surrogate.clip.low and .high",
    "epsilon_high": "rl_strategy.surrogate.clip.high",
    "beta": "rl_strategy.kl.coef",
    "loss_type": "rl_strategy.weight",
    "scale_rewards": "rl_strategy.advantage.group.std",
    "num_iterations": "rl_strategy.updates_per_rollout",
    "max_completion_length": "rollout.max_new_tokens",
    "max_prompt_length": "nothing: prompts are never cut silently",
    "reward_weights": "rewards.terms[].weight",
    "reward_funcs": "rewards.terms",
    "mask_truncated_completions": "rl_strategy.mask_truncated",
    "use_vllm": "rollout.engine",
    "learning_rate": "training.lr",
    "gradient_accumulation_steps": "training.grad_accum",
    "num_train_epochs": "training.epochs",
    "max_steps": "training.steps",
    "logging_steps": "nothing: every step is logged",
    "output_dir": "--run",
    "bf16": "training.precision",
    "fp16": "training.precision",
    "warmup_ratio": "training.warmup_steps",
    "lr_scheduler_type": "training.lr_schedule",
    "model_name_or_path": "model.base_model_path",
    # verl
    "actor_rollout_ref": "model, rollout and training",
    "algorithm": "rl_strategy",
    "adv_estimator": "rl_strategy.type",
    "train_batch_size": "training.prompts_per_step",
    "ppo_mini_batch_size": "training.batch_size",
    "ppo_micro_batch_size_per_gpu": "training.per_device_train_batch_size",
    "clip_ratio": "rl_strategy.surrogate.clip.low and .high",
    "clip_ratio_low": "rl_strategy.surrogate.clip.low",
    "clip_ratio_high": "rl_strategy.surrogate.clip.high",
    "kl_loss_coef": "rl_strategy.kl.coef",
    "loss_agg_mode": "rl_strategy.weight",
    "total_epochs": "training.epochs",
    "response_length": "rollout.max_new_tokens",
    # ms-swift, LLaMA-Factory
    "rlhf_type": "rl_strategy.type",
    "train_type": "model.lora (null = full)",
    "finetuning_type": "model.lora (null = full)",
    "lora_rank": "model.lora.r",
    "lora_alpha": "model.lora.alpha",
    "lora_target": "model.lora.target_modules",
    "dataset": "data.task",
    "cutoff_len": "rollout.max_new_tokens",
    "template": "model.template",
}


def strategy_key(name: str) -> str:
    """Strategy names are compared without case and `. - _` blanks, `++` read as pp: Dr.GRPO = dr_grpo = DRGRPO."""
    return re.sub(r"[.\-_\s]", "", name.replace("++", "pp")).casefold()


def strategy(name: Any) -> PolicyGradient | Supervised:
    table = {strategy_key(row): value for row, value in ALGORITHMS.items()}
    if not isinstance(name, str) or strategy_key(name) not in table:
        raise BadInput(f"rl_strategy.type = {name!r}", f"one of {', '.join(ALGORITHMS)}", "rl_strategy.type")
    return table[strategy_key(name)]


def load(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a YAML file (or its tree). Errors: BadInput with key, value and what is allowed."""
    tree: Mapping[str, Any] = load_yaml(source) if isinstance(source, Path) else source
    for assignment in overrides:
        tree = override(tree, assignment)
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> Recipe:
    tree = translate(tree)
    allowed = [*ROOMS, "rl_strategy"]
    for key in tree:
        if key not in allowed:
            hint = f"; here it is {FOREIGN[key]}" if key in FOREIGN else ""
            raise BadInput(f"unknown key {key}{hint}", ", ".join(allowed), "the config")
    if "model" not in tree:
        raise BadInput("the config has no model", "model: {base_model_path: ...}", "model.base_model_path")
    parts: dict[str, Any] = {name: _room(cls, tree.get(name), name) for name, cls in ROOMS.items()}
    body = dict(tree.get("rl_strategy") or {})
    base = strategy(body.pop("type", "grpo"))
    parts["rl_strategy"] = _known(lambda: build(type(base), body, "rl_strategy", base))
    recipe = Recipe(**parts)
    check(recipe)
    return recipe


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """The inverse of `from_tree`: everything resolved, loadable as it is."""
    tree = to_tree(recipe)
    same = [name for name, value in ALGORITHMS.items() if value == recipe.rl_strategy]
    kin = [name for name, value in ALGORITHMS.items() if type(value) is type(recipe.rl_strategy)]
    tree["rl_strategy"] = {"type": (same or kin)[0], **tree["rl_strategy"]}
    return tree


def _room(cls: type, tree: Any, name: str) -> Any:
    return _known(lambda: build(cls, tree, name))


def _known(make: Callable[[], Any]) -> Any:
    """An unknown key that another trainer knows is answered with ours."""
    try:
        return make()
    except BadInput as problem:
        key = problem.given.removeprefix("unknown key ").partition(";")[0].rsplit(".", 1)[-1]
        if problem.given.startswith("unknown key") and key in FOREIGN:
            raise BadInput(f"{problem.given}; here it is {FOREIGN[key]}", problem.allowed, problem.where) from None
        raise


def translate(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Other spellings into ours: simple renames, the filter and the token-efficiency tables, a bare list of rewards."""
    out = {str(k): v for k, v in tree.items()}
    if isinstance(out.get("rewards"), list):
        out["rewards"] = {"terms": out["rewards"]}
    for old, new in ALIASES.items():
        room, key = old.split(".", 1)
        if isinstance(out.get(room), Mapping) and key in out[room]:
            table = dict(out[room])
            value, ours = table.pop(key), new.split(".", 1)[1]
            if ours in table and table[ours] != value:
                raise BadInput(f"{old} = {value} and {new} = {table[ours]}", "one of the two", new)
            out[room] = {**table, ours: value}
    if isinstance(out.get("rl_strategy"), Mapping):
        out = _seed_tables(out)
    return out


def _seed_tables(out: dict[str, Any]) -> dict[str, Any]:
    """`filter_mechanism` is the filter part, `token_efficiency_reward` the rewards' length term; `enabled: false` switches either off."""
    body = dict(out["rl_strategy"])
    if isinstance(mechanism := body.pop("filter_mechanism", None), Mapping):
        fields = {"k" if k == "top_k" else k: v for k, v in mechanism.items() if k != "enabled"}
        body["filter"] = {"top_k": fields} if mechanism.get("enabled", True) else None
    if isinstance(term := body.pop("token_efficiency_reward", None), Mapping):
        fields = {k: v for k, v in term.items() if k != "enabled"}
        rewards = out.get("rewards")
        change = {"token_efficiency": fields if term.get("enabled", True) else None}
        out["rewards"] = lay_over(rewards if isinstance(rewards, Mapping) else {}, change)
    return {**out, "rl_strategy": body}


# --- impossible combinations ------------------------------------------------------------------------------------------------


def check(recipe: Recipe) -> None:
    """Errors: BadInput for what cannot work, each in one sentence."""
    t, a = recipe.training, recipe.rl_strategy

    def need(ok: bool, given: str, allowed: str, where: str) -> None:
        if not ok:
            raise BadInput(given, allowed, where)

    norm = t.max_grad_norm
    need(
        norm is None or norm > 0,
        f"training.max_grad_norm = {norm}",
        "a number above 0, or null for no clipping",
        "training.max_grad_norm",
    )
    for name in ("lr", "steps", "epochs", "prompts_per_step", "batch_size", "per_device_train_batch_size", "grad_accum"):
        value = getattr(t, name)
        need(value is None or value > 0, f"training.{name} = {value}", "a number above 0", f"training.{name}")
    for name in ("micro_batch_tokens", "save_steps", "keep_last"):
        need(getattr(t, name) > 0, f"training.{name} = {getattr(t, name)}", "a number above 0", f"training.{name}")
    need(
        recipe.rollout.temperature > 0,
        f"rollout.temperature = {recipe.rollout.temperature}",
        "a number above 0",
        "rollout.temperature",
    )
    need(
        recipe.rollout.max_new_tokens > 0,
        f"rollout.max_new_tokens = {recipe.rollout.max_new_tokens}",
        "1 or more",
        "rollout.max_new_tokens",
    )
    m = recipe.model
    need(
        m.reference_model_freeze or bool(m.reference_sync_steps),
        "model.reference_model_freeze is false without model.reference_sync_steps",
        "reference_sync_steps: how often the reference becomes a copy of the policy",
        "model.reference_sync_steps",
    )
    if m.lora is not None:
        need(m.lora.r > 0, f"model.lora.r = {m.lora.r}", "1 or more", "model.lora.r")
    if isinstance(a, PolicyGradient):
        _check_strategy(a, need)
    need(len(recipe.rewards.terms) > 0, "rewards.terms is empty", "at least one reward", "rewards.terms")


def _check_strategy(a: PolicyGradient, need: Callable[[bool, str, str, str], None]) -> None:
    g = a.group_size
    relative = isinstance(a.advantage, (GroupNorm, LeaveOneOut))
    need(
        g >= (2 if relative else 1),
        f"rl_strategy.group_size = {g}",
        "2 or more: one answer has nothing to be compared with",
        "rl_strategy.group_size",
    )
    need(
        a.updates_per_rollout >= 1,
        f"rl_strategy.updates_per_rollout = {a.updates_per_rollout}",
        "1 or more",
        "rl_strategy.updates_per_rollout",
    )
    if isinstance(a.filter, TopK):
        need(
            2 <= a.filter.k <= g,
            f"rl_strategy.filter.top_k.k = {a.filter.k}",
            f"2 to the group size ({g})",
            "rl_strategy.filter.top_k.k",
        )
    need(a.value is None, "rl_strategy.value asks for a critic, which this version does not train", "null", "rl_strategy.value")
    need(
        not isinstance(a.advantage, GAE),
        "rl_strategy.advantage.gae needs a critic, which this version does not train",
        "group, leave_one_out, return_to_go",
        "rl_strategy.advantage",
    )


# --- the plan ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Sizes derived from whatever was given, what will be computed, and what looks wrong."""

    prompts: int
    prompts_per_step: int
    group_size: int
    batch_size: int
    per_device_train_batch_size: int
    grad_accum: int
    ranks: int
    steps: int
    updates: int
    lr: float
    passes: tuple[str, ...]
    graph: str
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """What is printed before the run."""
        return [
            f"plan: {self.steps} steps of {self.prompts_per_step} prompts x {self.group_size} = "
            f"{self.prompts_per_step * self.group_size} sequences, {self.updates} updates of {self.batch_size} "
            f"({self.per_device_train_batch_size} x {self.grad_accum} x {self.ranks} ranks), lr {self.lr:g}",
            f"graph: {self.graph}",
            f"forward passes a step: {', '.join(self.passes)}",
            *(f"warning: {w}" for w in self.warnings),
        ]


def plan(recipe: Recipe, prompts: int, ranks: int = 1) -> Plan:
    """Derive the sizes. Errors: BadInput naming both keys of a contradiction."""
    t, a = recipe.training, recipe.rl_strategy
    per_step, batch, device, accumulate = sizes(t, a.group_size, a.updates_per_rollout, ranks)
    if prompts < per_step:
        raise BadInput(
            f"{prompts} training prompts make 0 batches of {per_step}",
            f"at least {per_step} prompts",
            "training.prompts_per_step or data",
        )
    by_epochs = math.ceil(t.epochs * prompts / per_step) if t.epochs is not None else None
    candidates = [n for n in (t.steps, by_epochs) if n is not None]
    steps = min(candidates) if candidates else max(1, prompts // per_step)
    return Plan(
        prompts=prompts,
        prompts_per_step=per_step,
        group_size=a.group_size,
        batch_size=batch,
        per_device_train_batch_size=device,
        grad_accum=accumulate,
        ranks=ranks,
        steps=steps,
        updates=steps * a.updates_per_rollout,
        lr=t.lr if t.lr is not None else (3e-5 if recipe.model.lora is not None else 1e-6),
        passes=passes(recipe),
        graph=graph(a),
        warnings=tuple(warnings(recipe)),
    )


def sizes(t: TrainingSettings, group: int, updates: int, ranks: int) -> tuple[int, int, int, int]:
    """prompts_per_step, batch_size, per_device_train_batch_size, grad_accum; batch_size = prompts_per_step x group / updates = device x accum x ranks."""
    by_prompts = None if t.prompts_per_step is None else t.prompts_per_step * group / updates
    by_device = None
    if t.per_device_train_batch_size is not None and t.grad_accum is not None:
        by_device = float(t.per_device_train_batch_size * t.grad_accum * ranks)
    known = {
        "training.batch_size": None if t.batch_size is None else float(t.batch_size),
        "training.prompts_per_step x group_size / updates_per_rollout": by_prompts,
        "training.per_device_train_batch_size x grad_accum x ranks": by_device,
    }
    given = [(name, value) for name, value in known.items() if value is not None]
    for (one, a), (other, b) in pairwise(given):
        if a != b:
            raise BadInput(f"{one} is {a:g} but {other} is {b:g}", "one of the two, or equal numbers", "training")
    batch = given[0][1] if given else 8 * group / updates
    per_step = batch * updates / group
    if batch != int(batch) or per_step != int(per_step) or per_step < 1:
        raise BadInput(
            f"{batch:g} sequences per update do not make whole prompts of {group} answers ({updates} updates a rollout)",
            f"a multiple of rl_strategy.group_size ({group})",
            "training.batch_size or training.prompts_per_step",
        )
    device = t.per_device_train_batch_size or math.ceil(batch / ranks / (t.grad_accum or 1))
    accumulate = t.grad_accum or math.ceil(batch / ranks / device)
    if device * accumulate * ranks != batch:
        raise BadInput(
            f"training.batch_size {batch:g} is not per_device_train_batch_size {device} x grad_accum {accumulate} x {ranks} ranks",
            "numbers whose product it is",
            "training.per_device_train_batch_size or training.grad_accum",
        )
    return int(per_step), int(batch), device, accumulate


def passes(recipe: Recipe) -> tuple[str, ...]:
    """Which forwards a step needs, derived from the parts."""
    a = recipe.rl_strategy
    found = [] if a.supervised else ["sampling"]
    found += ["old log-probs"] if a.needs_old(a.updates_per_rollout) else []
    free = " (adapter off)" if recipe.model.lora is not None else " (a second copy)"
    found += [f"reference{free}"] if a.needs_reference else []
    return (*found, "update")


def graph(a: PolicyGradient | Supervised) -> str:
    """Which computation is active, in one line."""
    if isinstance(a, Supervised):
        return f"supervised, {type(a.weight).__name__}"
    before = f"filter {a.filter} -> " if a.filter is not None else ""
    kl = f" + {a.kl}" if a.kl is not None else ""
    return f"sample {a.group_size} -> score -> {before}advantage {a.advantage} -> {a.surrogate}{kl} -> {a.weight}"


def warnings(recipe: Recipe) -> list[str]:
    """Legal, and probably not what was meant."""
    a, found = recipe.rl_strategy, []
    if not isinstance(a, PolicyGradient):
        return found
    if isinstance(a.filter, TopK):
        retained = isinstance(a.advantage, GroupNorm) and a.advantage.baseline == "retained"
        if a.filter.follows_reward() and retained:
            found.append(
                f"filter metric {a.filter.metric} follows the reward and the baseline is the retained set: with right/wrong rewards "
                "most groups get no gradient (advantage.group.baseline: group, or metric shortest)"
            )
        if a.filter.k == a.group_size:
            found.append("the filter keeps every completion: this is the algorithm without a filter")
    if isinstance(a.advantage, (GAE, ReturnToGo)) and isinstance(a.advantage.gamma, float) and a.advantage.gamma < 1:
        found.append(f"gamma {a.advantage.gamma} discounts a terminal reward to {a.advantage.gamma**500:.4f} after 500 tokens")
    if recipe.rollout.top_p < 1 or recipe.rollout.top_k > 0 or recipe.rollout.min_p > 0:
        found.append("top_p, top_k and min_p make the sampled distribution another than the policy that is updated")
    if recipe.model.lora is not None and recipe.model.lora.dropout > 0:
        found.append("lora.dropout is switched off: with it two forwards of the same weights disagree")
    return found
