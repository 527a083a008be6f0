"""A run's typed tree from every room's settings, other spellings of its keys, and the plan: what will be computed before anything is.

Example:
    >>> recipe = load(Path("recipes/tiny-grpo.yaml"), ["training.steps=5"])
    >>> plan(recipe, prompts=500).lines()
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from policyloop.algorithms import ALGORITHMS, BradleyTerry, PolicyGradient, Preference, Strategy, Supervised
from policyloop.algorithms.parts.advantage import GAE, GroupNorm, LeaveOneOut, ProcessNorm, ReturnToGo
from policyloop.algorithms.parts.difficulty import BUCKETS
from policyloop.algorithms.parts.filter import METRICS as FILTER_METRICS
from policyloop.algorithms.parts.filter import TopK, metric_of
from policyloop.config import UnknownKey, assigned, build, known, lay_over, load_yaml, slots, to_tree
from policyloop.engine import ENGINES
from policyloop.errors import BadInput
from policyloop.evaluation import EvaluationSettings
from policyloop.export import ExportSettings
from policyloop.models import ModelSettings
from policyloop.monitor import MonitorSettings
from policyloop.monitor.guards import FACTORS, GUARDS
from policyloop.rewards import RewardsSettings
from policyloop.rollout import RolloutSettings
from policyloop.spellings import FOREIGN, translate
from policyloop.store import StoreSettings
from policyloop.tasks import DataSettings
from policyloop.training import TrainingSettings
from policyloop.types import settings


@settings
class Recipe:
    """Everything a run is made from; the same tree lies in its manifest."""

    model: ModelSettings
    data: DataSettings = field(default_factory=DataSettings)
    rewards: RewardsSettings = field(default_factory=RewardsSettings)
    rl_strategy: Strategy = field(default_factory=lambda: ALGORITHMS["grpo"])
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    export: ExportSettings = field(default_factory=ExportSettings)
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    store: StoreSettings | None = None


ROOMS: dict[str, type] = {
    "model": ModelSettings,
    "data": DataSettings,
    "rewards": RewardsSettings,
    "rollout": RolloutSettings,
    "training": TrainingSettings,
    "evaluation": EvaluationSettings,
    "export": ExportSettings,
    "monitor": MonitorSettings,
    "store": StoreSettings,
}
OPTIONAL = ("store",)  # not there unless asked for; `store: {}` asks for its defaults


def strategy_key(name: str) -> str:
    """Strategy names are compared without case and `. - _` blanks, `++` read as pp: Dr.GRPO = dr_grpo = DRGRPO."""
    return re.sub(r"[.\-_\s]", "", name.replace("++", "pp")).casefold()


def strategy(name: Any) -> Strategy:
    table = {strategy_key(row): value for row, value in ALGORITHMS.items()}
    if not isinstance(name, str) or strategy_key(name) not in table:
        raise BadInput(f"rl_strategy.type = {name!r}", f"one of {', '.join(ALGORITHMS)}", "rl_strategy.type")
    return table[strategy_key(name)]


STRATEGIES = (PolicyGradient, Supervised, Preference, BradleyTerry)
PARTS = frozenset(name for cls in STRATEGIES for name in slots(cls))


def load(source: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a YAML file (or its tree), `a.b=c` laid over it. Errors: BadInput with key, value and what is allowed."""
    tree = translate(load_yaml(source) if isinstance(source, Path) else source)
    for assignment in overrides:  # each in our own keys first: any spelling overrides any other
        tree = lay_over(tree, translate(assigned(assignment)), PARTS)
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> Recipe:
    """A recipe from a tree as YAML gives it. Errors: BadInput."""
    tree = translate(tree)
    rooms = [*ROOMS, "rl_strategy"]
    for key in tree:
        if key not in rooms:
            raise UnknownKey(key, key, rooms, "the config", hint=elsewhere(key))
    if "model" not in tree:
        raise BadInput("the config has no model", "model: {base_model_path: ...}", "model.base_model_path")
    given = {name: cls for name, cls in ROOMS.items() if name not in OPTIONAL or tree.get(name) is not None}
    parts: dict[str, Any] = {name: _known(lambda n=name, c=cls: build(c, tree.get(n), n)) for name, cls in given.items()}
    body = tree.get("rl_strategy") or {}
    if not isinstance(body, Mapping):
        raise BadInput(f"rl_strategy = {body!r}", "a table with type and what differs from it", "rl_strategy")
    base = strategy(body.get("type", "grpo"))
    rest = {key: value for key, value in body.items() if key != "type"}
    parts["rl_strategy"] = _known(lambda: build(type(base), rest, "rl_strategy", base))
    recipe = Recipe(**parts)
    check(recipe)
    return recipe


def tree_of(recipe: Recipe) -> dict[str, Any]:
    """The inverse of `from_tree`: everything resolved, loadable as it is. `type` is the vetted point with the most parts in common."""
    tree, mine = to_tree(recipe), recipe.rl_strategy

    def shared(name: str) -> int:
        other = ALGORITHMS[name]
        return sum(getattr(other, f.name) == getattr(mine, f.name) for f in fields(mine)) if type(other) is type(mine) else -1

    tree["rl_strategy"] = {"type": max(ALGORITHMS, key=shared), **tree["rl_strategy"]}
    return tree


def _known(make: Callable[[], Any]) -> Any:
    """An unknown key that another room or another trainer knows is answered with its place here."""
    try:
        return make()
    except UnknownKey as problem:
        raise problem.with_hint(elsewhere(problem.key)) from None


def elsewhere(key: str) -> str | None:
    """Where a key's meaning lives: of another trainer, or one of ours in another room."""
    own = [f"{room}.{key}" for room, cls in ROOMS.items() if key in known(cls)]
    own += [f"rl_strategy.{key}" for cls in STRATEGIES if key in known(cls)][:1]
    return FOREIGN.get(key) or (" or ".join(own) or None)


# --- impossible combinations ------------------------------------------------------------------------------------------------

Bound = Literal[">", ">=", "<", "<="]
COMPARE: dict[Bound, tuple[str, Callable[[float, float], bool]]] = {
    ">": ("above", operator.gt),
    ">=": ("at least", operator.ge),
    "<": ("below", operator.lt),
    "<=": ("at most", operator.le),
}
POSITIVE: tuple[tuple[Bound, float], ...] = ((">", 0),)
COUNT: tuple[tuple[Bound, float], ...] = ((">=", 1),)
NATURAL: tuple[tuple[Bound, float], ...] = ((">=", 0),)
SHARE: tuple[tuple[Bound, float], ...] = ((">=", 0), ("<=", 1))

LIMITS: dict[str, tuple[tuple[Bound, float], ...]] = {
    "model.reference_sync_steps": COUNT,
    "model.lora.r": COUNT,
    "model.lora.alpha": COUNT,
    "model.lora.dropout": ((">=", 0), ("<", 1)),
    "rl_strategy.group_size": COUNT,
    "rl_strategy.updates_per_rollout": COUNT,
    "rl_strategy.epochs_per_rollout": COUNT,
    "rl_strategy.target_kl": POSITIVE,
    "rl_strategy.filter.batches": COUNT,
    "model.critic.lr": POSITIVE,
    "model.critic.betas": ((">=", 0), ("<", 1)),
    "model.critic.max_grad_norm": POSITIVE,
    "model.critic.warmup_steps": NATURAL,
    "rl_strategy.loss.beta": POSITIVE,
    "rl_strategy.loss.label_smoothing": ((">=", 0), ("<", 0.5)),
    "rl_strategy.loss.gamma": NATURAL,
    "rl_strategy.loss.nll": NATURAL,
    "rl_strategy.center": NATURAL,
    "rollout.temperature": POSITIVE,
    "rollout.top_p": ((">", 0), ("<=", 1)),
    "rollout.top_k": NATURAL,
    "rollout.min_p": SHARE,
    "rollout.max_new_tokens": COUNT,
    "rollout.samples": NATURAL,
    "rollout.allocation.prompts.alpha": NATURAL,
    "rollout.allocation.prompts.uniform": SHARE,
    "rollout.allocation.prompts.keep": SHARE,
    "rollout.allocation.prompts.fresh": SHARE,
    "rollout.allocation.prompts.max_repeats": COUNT,
    **{f"rollout.allocation.samples.{name}": COUNT for name in ("start", "floor", "cap", "first", "wave")},
    "rollout.allocation.samples.rate": POSITIVE,
    "rollout.allocation.samples.least": SHARE,
    "rollout.explain_every": NATURAL,
    **{f"training.{name}": POSITIVE for name in ("epochs", "lr", "eps", "max_grad_norm", "save_grace_s", "dist.timeout_s")},
    **{
        f"training.{name}": COUNT
        for name in ("steps", "prompts_per_step", "batch_size", "per_device_train_batch_size", "grad_accum")
    },
    **{f"training.{name}": COUNT for name in ("micro_batch_tokens", "save_steps", "keep_last", "threads", "early_stop")},
    **{f"training.{name}": NATURAL for name in ("warmup_steps", "weight_decay", "keep_best", "resources.gpus")},
    "training.betas": ((">=", 0), ("<", 1)),
    "training.signal_check.prompts": COUNT,
    "training.signal_check.min_share": SHARE,
    "training.health.max_bad_steps": COUNT,
    "training.health.max_skipped_steps": COUNT,
    "training.dist.master_port": ((">=", 1), ("<=", 65535)),
    "store.keep.last": COUNT,
    **{f"store.keep.{name}": NATURAL for name in ("best", "days", "grace_s")},
}

# settled names whose other values come with later versions: refused, so that nothing is accepted and ignored
ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "rollout.max_lag": ((0,), "0: this version samples and trains in turn"),
    "training.resources.gpus": ((None, 0, 1), "null, 0 or 1: a process has one; for several, start several (docs/scale.md)"),
}


def need(ok: bool, given: str, allowed: str, where: str) -> None:
    """Errors: BadInput unless `ok`."""
    if not ok:
        raise BadInput(given, allowed, where)


def value_at(recipe: Recipe, path: str) -> Any:
    """The value at a dotted path; None below what is null or not there."""
    found: Any = recipe
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def check(recipe: Recipe) -> None:
    """Errors: BadInput for what cannot work, each in one sentence."""
    for path, bounds in LIMITS.items():
        value = value_at(recipe, path)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                fits = all(COMPARE[sign][1](number, bound) for sign, bound in bounds)
                need(fits, f"{path} = {number}", " and ".join(f"{COMPARE[sign][0]} {bound:g}" for sign, bound in bounds), path)
    for path, (values, allowed) in ONLY.items():
        need(value_at(recipe, path) in values, f"{path} = {value_at(recipe, path)}", allowed, path)
    _check_model(recipe)
    _check_run(recipe)
    if isinstance(recipe.rl_strategy, PolicyGradient):
        _check_strategy(recipe.rl_strategy)


def _check_model(recipe: Recipe) -> None:
    m = recipe.model
    need(
        bool(m.base_model_path.strip()),
        "model.base_model_path is empty",
        "a folder, a catalogue name or a hub id",
        "model.base_model_path",
    )
    need(
        m.reference_model_freeze or m.reference_sync_steps is not None,
        "model.reference_model_freeze is false without model.reference_sync_steps",
        "reference_sync_steps: how often the reference becomes a copy of the policy",
        "model.reference_sync_steps",
    )
    if m.lora is not None:
        where = "model.lora.target_modules"
        need(len(m.lora.target_modules) > 0, f"{where} is empty", "all-linear, or names of linear layers", where)


def _check_run(recipe: Recipe) -> None:
    t, r, e = recipe.training, recipe.rollout, recipe.evaluation
    need(r.engine in ENGINES, f"rollout.engine = {r.engine}", f"one of {', '.join(ENGINES)}", "rollout.engine")
    known_device = re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", t.device) is not None
    need(known_device, f"training.device = {t.device}", "auto, cpu, mps, cuda or cuda:0, cuda:1, …", "training.device")
    need(
        t.resources.gpus is None or t.device == "auto" or (t.resources.gpus > 0) == t.device.startswith("cuda"),
        f"training.resources.gpus = {t.resources.gpus} and training.device = {t.device}",
        "one of the two, or both of one mind",
        "training.device",
    )
    need(
        t.early_stop is None or e.every > 0,
        "training.early_stop is set and nothing is evaluated during training",
        "evaluation.every: 1 or more",
        "evaluation.every",
    )
    _check_health(recipe)
    if r.replay is not None:
        _check_replay(recipe)
    need(
        e.target is None or e.every > 0,
        "evaluation.target is set and nothing is evaluated during training",
        "evaluation.every: 1 or more",
        "evaluation.every",
    )
    need(
        recipe.store is None or recipe.store.export is None or recipe.rl_strategy.head != "scalar",
        "store.export is set and a reward model is trained, which gives no answers to compare",
        "store.export: null",
        "store.export",
    )
    need(len(recipe.rewards.terms) > 0, "rewards.terms is empty", "at least one reward", "rewards.terms")


def _check_replay(recipe: Recipe) -> None:
    """Recorded answers are another policy's, and nothing is sampled."""
    r, a = recipe.rollout, recipe.rl_strategy
    given = f"rollout.replay = {r.replay}"
    need(
        isinstance(a, PolicyGradient),
        f"{given} and {type(a).__name__}",
        "an algorithm that learns from scored answers",
        "rollout.replay",
    )
    where = "rl_strategy.correction"
    need(
        getattr(a, "correction", None) is not None,
        f"{given} without {where}",
        "a correction, such as importance: {}, since another policy gave these answers",
        where,
    )
    batches = getattr(getattr(a, "filter", None), "batches", 1)
    need(batches == 1, f"{given} and batches = {batches}", "1: nothing is sampled on", "rl_strategy.filter.drop_constant.batches")
    need(not r.save, f"{given} and rollout.save", "one of the two: these answers are kept already", "rollout.save")
    need(r.allocation is None, f"{given} and rollout.allocation", "one of the two: nothing is sampled", "rollout.allocation")


def _check_health(recipe: Recipe) -> None:
    """An action needs the number it changes."""
    for name, action in recipe.training.health.actions.items():
        where = f"training.health.actions.{name}"
        need(name in GUARDS, f"{where} names no guard", f"one of {', '.join(GUARDS)}", where)
        for path in FACTORS.get(action, {}):
            number = recipe.training if path == "lr" else value_at(recipe, f"rl_strategy.{path}")
            given = f"{where} = {action}, and this algorithm has no {path}"
            need(number is not None, given, "warn, lower_lr, stop or restore", where)


def _check_strategy(a: PolicyGradient) -> None:
    g = a.group_size
    relative = isinstance(a.advantage, (GroupNorm, LeaveOneOut, ProcessNorm)) or (
        isinstance(a.advantage, ReturnToGo) and a.advantage.baseline != "none"
    )
    need(
        g >= (2 if relative else 1),
        f"rl_strategy.group_size = {g}",
        "2 or more: one answer has nothing to be compared with",
        "rl_strategy.group_size",
    )
    if isinstance(a.filter, TopK):
        where = "rl_strategy.filter.top_k"
        need(2 <= a.filter.k <= g, f"{where}.k = {a.filter.k}", f"2 to the group size ({g})", f"{where}.k")
        try:
            found = callable(metric_of(a.filter.metric))
        except (ImportError, AttributeError, ValueError):
            found = False
        given = f"{where}.metric = {a.filter.metric}"
        need(found, given, f"one of {', '.join(FILTER_METRICS)}, or package.module:function", f"{where}.metric")
        if (d := a.filter.difficulty) is not None:
            largest = max(d.k(bucket) for bucket in BUCKETS)
            need(
                largest <= g, f"{where}.difficulty keeps {largest} of {g}", "every k up to the group size", f"{where}.difficulty"
            )
    need(
        (a.value is None) != isinstance(a.advantage, GAE),
        f"rl_strategy.advantage is {type(a.advantage).__name__} and rl_strategy.value is {a.value}",
        "gae with a value loss (the critic it reads), or neither",
        "rl_strategy.value",
    )
    need(
        not (isinstance(a.advantage, ProcessNorm) and a.kl is not None and a.kl.where == "reward"),
        "rl_strategy.advantage.process and kl.where: reward",
        "kl.where: loss, or another advantage",
        "rl_strategy.kl",
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
    tokens_per_step: int | None
    lr: float
    passes: tuple[str, ...]
    graph: str
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """What is printed before the run."""
        sampled = [] if self.tokens_per_step is None else [f"sampled tokens a step: at most {self.tokens_per_step:,}"]
        return [
            f"plan: {self.steps} steps of {self.prompts_per_step} prompts x {self.group_size} = "
            f"{self.prompts_per_step * self.group_size} sequences, {self.updates} updates of {self.batch_size} "
            f"({self.per_device_train_batch_size} x {self.grad_accum} x {self.ranks} ranks), lr {self.lr:g}",
            f"graph: {self.graph}",
            *sampled,
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
    warmup = recipe.model.critic.warmup_steps if a.needs_critic else 0
    repeats = a.epochs_per_rollout if isinstance(a, PolicyGradient) else 1
    updates = max(1, steps - warmup) * a.updates_per_rollout * repeats
    short = [
        f"training.warmup_steps {t.warmup_steps} is not below the {updates} updates: the learning rate never reaches training.lr"
    ]
    return Plan(
        prompts=prompts,
        prompts_per_step=per_step,
        group_size=a.group_size,
        batch_size=batch,
        per_device_train_batch_size=device,
        grad_accum=accumulate,
        ranks=ranks,
        steps=steps,
        updates=updates,
        tokens_per_step=None
        if a.supervised or recipe.rollout.replay is not None
        else per_step * a.group_size * recipe.rollout.max_new_tokens,
        lr=t.lr if t.lr is not None else (3e-5 if recipe.model.lora is not None else 1e-6),
        passes=passes(recipe),
        graph=graph(a),
        warnings=(*warnings(recipe), *(short if t.warmup_steps >= updates else [])),
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
    found = [] if a.supervised or recipe.rollout.replay is not None else ["sampling"]
    found += ["old log-probs"] if a.needs_old(a.updates_per_rollout) else []
    free = " (adapter off)" if recipe.model.lora is not None else " (a second copy)"
    found += [f"reference{free}"] if a.needs_reference else []
    found += ["values (a model of its own)"] if a.needs_critic else []
    return (*found, "update")


def graph(a: Strategy) -> str:
    """Which computation is active, in one line."""
    if isinstance(a, Supervised):
        return f"supervised, {type(a.weight).__name__}"
    if not isinstance(a, PolicyGradient):
        return f"pairs (chosen, rejected) -> {a.loss if isinstance(a, Preference) else a} -> mean over pairs"
    before = f"filter {a.filter} -> " if a.filter is not None else ""
    kl = f" + {a.kl}" if a.kl is not None else ""
    return f"sample {a.group_size} -> score -> {before}advantage {a.advantage} -> {a.surrogate}{kl} -> {a.weight}"


def warnings(recipe: Recipe) -> list[str]:
    """Legal, and probably not what was meant."""
    a, found = recipe.rl_strategy, []
    if not isinstance(a, PolicyGradient):
        return found
    if recipe.rollout.top_p < 1 or recipe.rollout.top_k > 0 or recipe.rollout.min_p > 0:
        found.append("top_p, top_k and min_p make the sampled distribution another than the policy that is updated")
    if recipe.model.lora is not None and recipe.model.lora.dropout > 0:
        found.append("lora.dropout is switched off: with it two forwards of the same weights disagree")
    if recipe.model.reference_sync_steps is not None and (recipe.model.reference_model_freeze or not a.needs_reference):
        why = "the reference is frozen" if recipe.model.reference_model_freeze else "nothing reads the reference (kl.coef)"
        found.append(f"model.reference_sync_steps does nothing: {why}")
    return found + _strategy_warnings(a)


def _strategy_warnings(a: PolicyGradient) -> list[str]:
    found = []
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
    coef = a.entropy.coef if a.entropy is not None else 0.0
    if isinstance(coef, float) and not 0 <= coef <= 0.01:
        effect = "rewards certainty: the policy collapses" if coef < 0 else "pulls towards noise; 0.001 is usual"
        found.append(f"entropy.coef {coef:g} {effect}")
    return found


def device_of(recipe: Recipe) -> str:
    """`training.device`, where `training.resources.gpus` does not decide it: 0 = the CPU, 1 = a GPU."""
    gpus, device = recipe.training.resources.gpus, recipe.training.device
    return device if gpus is None or device != "auto" else ("cuda" if gpus else "cpu")


def memory(recipe: Recipe, planned: Plan) -> str:
    """One sentence on memory, for a model that is on this machine (loads torch)."""
    import torch

    from policyloop.models.foresee import memory_line
    from policyloop.models.policy import choose_precision

    device = device_of(recipe)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    a, rows = recipe.rl_strategy, 0 if recipe.rl_strategy.supervised else min(64, planned.prompts_per_step * planned.group_size)
    return memory_line(
        recipe.model,
        choose_precision(recipe.training.precision, device),
        device,
        recipe.training.micro_batch_tokens,
        rows,
        recipe.rollout.max_new_tokens,
        a.needs_reference,
    )
