"""A run from a recipe: assemble the parts, look before leaping, train, keep everything resumable.

In: a `Recipe` (typed tree) and a folder. Out: a `Run` with its folder, the trained policy and what it can be asked.

Example:
    >>> run = start(load("recipes/tiny-grpo.yaml"), Path("runs/tiny"), resume="auto")
    >>> run.evaluate().accuracy
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import os
import platform
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from policyloop import __version__
from policyloop.algorithms import BradleyTerry, Preference
from policyloop.algorithms.parts.filter import DropConstant
from policyloop.engine import ENGINES, Engine, EngineSpec
from policyloop.errors import BadInput, Interrupted, Problem
from policyloop.evaluation.evaluate import Evaluation, evaluate
from policyloop.evaluation.pairs import PairEvaluation, evaluate_pairs
from policyloop.export.bundle import export
from policyloop.export.origin import origin_of
from policyloop.hooks import (
    Agree,
    Console,
    Evaluate,
    GivenUp,
    Health,
    Interruptible,
    Metrics,
    Samples,
    Save,
    Signals,
    dump_bad,
    group_figures,
    newest,
    restore,
)
from policyloop.loop import Hook, Step, Stop, train
from policyloop.models.catalogue import resolve
from policyloop.models.critic import Critic, load_critic
from policyloop.models.policy import PolicyModel, load_policy
from policyloop.models.reward import RewardModel, load_reward_model
from policyloop.models.template import Renderer, load_renderer
from policyloop.monitor.health import Watch
from policyloop.monitor.trackers import open_trackers
from policyloop.recipe import Plan, Recipe, device_of, plan, tree_of
from policyloop.rewards.scorer import Scorer
from policyloop.rollout.cursor import Draw
from policyloop.rollout.replay import Recorded, ReplaySource, encode, read
from policyloop.rollout.source import RolloutSource, Source
from policyloop.tasks import Task, load_task
from policyloop.training.checkpoint import Checkpoints
from policyloop.training.exporter import Exporter
from policyloop.training.folder import RunFolder
from policyloop.training.ranks import LedScorer, Ranks, SharedEngine, joined
from policyloop.training.register import Bundler, into_store, sources
from policyloop.training.remote_critic import RemoteCritic
from policyloop.training.sources import PairSource, SupervisedSource
from policyloop.training.trainer import Trainer
from policyloop.types import Progress, SamplingParams

Say = Callable[[str], None]


@dataclass
class Parts:
    """Everything a run is made of, assembled and not yet started."""

    recipe: Recipe
    plan: Plan
    policy: PolicyModel
    renderer: Renderer
    engine: Engine | None  # None: nothing is sampled, not even for evaluation
    task: Task
    source: Source
    trainer: Trainer


@dataclass
class Run:
    """A finished (or resumed and finished) run."""

    folder: Path
    parts: Parts
    progress: Progress

    def evaluate(self, prompts: int | None = None, max_new_tokens: int | None = None) -> Evaluation | PairEvaluation:
        """The trained policy on held-out prompts, decoded as `evaluation` says."""
        return measure(self.parts, f"{self.folder.name}#{self.progress.step}", prompts, max_new_tokens)

    def close(self) -> None:
        """Free the engine: nothing samples from this run any more. What it wrote stays."""
        if self.parts.engine is not None:
            self.parts.engine.close()

    @property
    def policy_path(self) -> Path:
        """The newest checkpoint's policy folder: a MODEL for every other verb."""
        newest = Checkpoints(self.folder / "checkpoints").latest()
        assert newest is not None
        return newest.path / "policy"


def assemble(recipe: Recipe, name: str, say: Say, task: Task | None = None, ranks: Ranks | None = None) -> Parts:
    """Load model, data, rewards and engine. Cheap checks (data, rewards, sizes) come before the model."""
    settings, ranks = recipe.training, ranks or Ranks()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    task = task or load_task(recipe.data, settings.seed)
    for note in task.notes:
        say(f"data: {note}")
    prompts = task.train()
    recorded = recorded_of(recipe, task, say)
    planned = plan(recipe, len(prompts if recorded is None else recorded.groups), ranks.world)
    judged_on = prompts if recorded is None or recorded.judged else [g.prompt for g in recorded.groups]
    scorer = Scorer.from_settings(
        recipe.rewards, grade=task.grade, prompts=judged_on, max_new_tokens=recipe.rollout.max_new_tokens
    )
    judge = scorer if ranks.world == 1 else LedScorer(scorer, ranks)
    path = resolve(recipe.model.base_model_path)
    renderer = load_renderer(path, recipe.model.template)
    for note in renderer.notes:
        say(f"model: {note}")
    policy = policy_of(recipe)
    if recipe.model.lora is None:  # a whole model goes without its base, so its tokenizer travels along
        policy.extra = renderer.files()
    say(f"model {recipe.model.base_model_path}: {policy.trainable_count():,} of {policy.parameter_count():,} parameters train")
    engine = (
        None if recipe.rl_strategy.whole_groups else engine_of(recipe, path, name, policy, ranks)
    )  # pairs are compared, not sampled
    trainer = Trainer(
        policy,
        recipe.rl_strategy,
        settings,
        temperature=recipe.rollout.temperature or 1.0,
        lr=planned.lr,
        critic=critic_of(recipe, ranks) if recipe.rl_strategy.needs_critic else None,
        critic_warmup=recipe.model.critic.warmup_steps,
        ranks=ranks,
    )
    size, seed = planned.prompts_per_step, settings.seed
    source: Source
    if engine is None:
        source = PairSource(prompts, renderer, per_step=size, seed=seed)
    elif recipe.rl_strategy.supervised:
        source = SupervisedSource(prompts, renderer, per_step=size, seed=seed)
    elif recorded is not None:
        source = ReplaySource(recorded, judge, per_step=size, seed=seed)
    else:
        params, dynamic = sampling(recipe), dynamic_of(recipe)
        source = RolloutSource(
            prompts,
            engine,
            renderer,
            judge,
            params,
            per_step=size,
            seed=seed,
            dynamic=dynamic,
            allocation=recipe.rollout.allocation,
            grade=task.grade,
        )
    return Parts(recipe, planned, policy, renderer, engine, task, source, trainer)


def recorded_of(recipe: Recipe, task: Task, say: Say) -> Recorded | None:
    """The answers that `rollout.replay` names."""
    if recipe.rollout.replay is None:
        return None
    found = read(Path(recipe.rollout.replay).expanduser(), {p.id for p in task.held_out(recipe.evaluation.seed)})
    answers = sum(len(g.completions) for g in found.groups)
    kept = "with the values of the file" if found.judged else "scored again"
    left = f"; {found.left_out} without token ids and log-probs are left out" if found.left_out else ""
    say(f"replay: {answers:,} recorded answers to {len(found.groups):,} prompts, {kept}{left}")
    return found


def policy_of(recipe: Recipe) -> PolicyModel:
    """What trains: a policy, or a trunk with a scalar head where the objective asks for one number per completion."""
    t, device, budget = recipe.training, device_of(recipe), recipe.training.micro_batch_tokens
    if recipe.rl_strategy.head == "scalar":
        return load_reward_model(recipe.model, t.precision, device, t.seed, micro_batch_tokens=budget)
    supervised = recipe.rl_strategy.supervised
    return load_policy(recipe.model, t.precision, device, t.seed, supervised=supervised, micro_batch_tokens=budget)


def engine_of(recipe: Recipe, path: Path, name: str, policy: PolicyModel, ranks: Ranks) -> Engine:
    """What samples, with the base's own weights as version `<name>#0`; with several ranks each answers its share."""
    options = dict(recipe.rollout.engine_options)
    spec = EngineSpec(str(path), f"{name}#0", engine_dtype(recipe, policy), policy.device_name, options)
    engine = ENGINES[recipe.rollout.engine](spec)
    return engine if ranks.world == 1 else cast(Engine, SharedEngine(engine, ranks))


def critic_of(recipe: Recipe, ranks: Ranks) -> Critic:
    """The critic beside the policy, of the same precision on the same device (every rank's learns from all rows); or the one that value
    services hold."""
    t, service = recipe.training, recipe.model.critic.service
    if service:
        if ranks.world > 1:
            raise BadInput(f"{ranks.world} ranks would teach one value service", "a critic in process", "model.critic.service")
        return RemoteCritic(service, recipe.model.critic.service_timeout_s)
    return load_critic(recipe.model, recipe.model.critic, t.precision, device_of(recipe), t.seed, t.micro_batch_tokens)


def dynamic_of(recipe: Recipe) -> DropConstant | None:
    """The filter that the source samples on for, where the algorithm has it (DAPO)."""
    part = getattr(recipe.rl_strategy, "filter", None)
    return part if isinstance(part, DropConstant) and part.batches > 1 else None


def engine_dtype(recipe: Recipe, policy: PolicyModel) -> str:
    """`auto` follows the trainer: the engine's numbers should be the trainer's."""
    chosen = recipe.rollout.dtype
    return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[policy.precision] if chosen == "auto" else chosen


def sampling(recipe: Recipe) -> SamplingParams:
    """How this run samples for training."""
    r = recipe.rollout
    return SamplingParams(
        max_new_tokens=r.max_new_tokens,
        temperature=r.temperature,
        top_p=r.top_p,
        top_k=r.top_k,
        min_p=r.min_p,
        stop=r.stop,
        seed=recipe.training.seed,
        n=recipe.rl_strategy.group_size,
    )


def measure(
    parts: Parts, version: str, prompts: int | None = None, max_new_tokens: int | None = None
) -> Evaluation | PairEvaluation:
    """Held-out evaluation; an engine that nothing samples from gets the weights only now. Pairs are compared instead of answered."""
    s, objective = parts.recipe.evaluation, parts.recipe.rl_strategy
    chosen = list(parts.task.held_out(s.seed))[: prompts or s.prompts]
    if parts.engine is None:
        assert isinstance(objective, (Preference, BradleyTerry))
        heat, budget = parts.trainer.temperature, parts.trainer.budget
        return evaluate_pairs(parts.policy, objective, parts.renderer, chosen, version=version, temperature=heat, budget=budget)
    if parts.engine.status().version != version:
        parts.engine.publish(parts.trainer.weights(version))
    params = SamplingParams(
        max_new_tokens=max_new_tokens or s.max_new_tokens or parts.recipe.rollout.max_new_tokens,
        temperature=s.temperature,
        stop=parts.recipe.rollout.stop,
        seed=s.seed,
        n=s.samples,
    )
    return evaluate(parts.engine, parts.renderer, parts.task, chosen, params, version=version)


def start(
    recipe: Recipe,
    path: Path,
    *,
    resume: str = "never",
    force: bool = False,
    say: Say = print,
    task: Task | None = None,
    like: Path | None = None,
) -> Run:
    """Train from a recipe into `path`. `like`: a run from the same start; what it measured before its first step is not measured again
    where only the algorithm differs. Errors: BadInput, Problem (a guard ended the run), Interrupted (a checkpoint was saved)."""
    with joined(recipe.training.dist, device_of(recipe)) as ranks:
        monitor = recipe.monitor if ranks.leader else dataclasses.replace(recipe.monitor, metrics_port=None, push_url=None)
        with closing(Exporter(monitor, path.name)) as exporter:  # a taken port is told before anything is written
            folder, resuming = open_folder(recipe, path, resume, say) if ranks.leader else (RunFolder(path, writes=False), False)
            try:
                with Signals(ranks).listen() as signals:
                    resuming = ranks.led(lambda: resuming)
                    talk = say if ranks.leader else lambda line: None
                    return _start(recipe, folder, resuming, force, talk, task, signals, exporter, like)
            finally:
                folder.unlock()


def _start(
    recipe: Recipe,
    folder: RunFolder,
    resuming: bool,
    force: bool,
    say: Say,
    task: Task | None,
    signals: Signals,
    exporter: Exporter,
    like: Path | None,
) -> Run:
    ranks = signals.ranks
    try:
        parts = assemble(recipe, folder.path.name, say, task, ranks)
    except Problem:
        if not resuming:
            folder.discard()  # nothing was begun: the mended recipe may use the same folder
        raise
    for line in parts.plan.lines():
        say(line)
    parts.trainer.on_bad = dump_bad(folder)
    s = recipe.training
    checkpoints = Checkpoints(
        folder.path / "checkpoints",
        keep_last=s.keep_last,
        keep_best=s.keep_best,
        higher_is_better=recipe.evaluation.better == "higher",
        second=s.second_destination,
        asynchronous=s.async_save,
        on_event=lambda kind, info: folder.event(kind, 0, **info),
        writes=ranks.leader,
    )
    source = Interruptible(parts.source, signals)
    judge = evaluation_hook(parts, folder)
    save = Save(checkpoints, parts.trainer, source, judge, folder, s.save_steps, signals)
    progress = Progress(steps=parts.plan.steps, updates=parts.plan.updates)
    try:
        if resuming:
            progress = resume_from(checkpoints, parts, source, judge, folder, progress, say)
        if progress.step == 0:
            before_the_first_step(parts, judge, folder, force, say, known_from(like, recipe))
        ranks.meet()  # what rank 0 has written so far is read by all
        hooks = hooks_of(parts, folder, checkpoints, judge, save, exporter, say)
        progress = train(source, parts.trainer, progress, name=folder.path.name, hooks=hooks)
    except GivenUp as stopped:
        interrupted = leave(save, source, stopped)
        ranks.meet()  # launchers end all ranks when the first leaves
        raise interrupted from None
    except Stop as stopped:
        checkpoints.wait()
        progress = stopped.progress or progress
        folder.event("stop", progress.step, reason=stopped.reason, **stopped.info)
        if stopped.info.get("failed"):
            raise Problem(stopped.reason, stopped.info.get("advice", "")) from None
        if "restore" in stopped.info:
            progress = back_to(checkpoints, stopped.info["restore"], parts, source, judge)
        say(f"stopped early: {stopped.reason}")
    checkpoints.wait()
    if ranks.leader:
        parts.renderer.save(folder.path / "renderer")
    if isinstance(parts.policy, RewardModel):
        save_reward_model(parts, parts.policy, folder, progress, say)
    if recipe.store is not None and ranks.leader:
        into_store(recipe.store, folder, say, bundler(parts, say))
    ranks.meet()
    return Run(folder.path, parts, progress)


def bundler(parts: Parts, say: Say) -> Bundler | None:
    """Where `store.export` asks for it: what is registered is no checkpoint but a bundle, asked the same questions as the checkpoint."""
    recipe = parts.recipe
    if recipe.store is None or recipe.store.export is None:
        return None
    settings = dataclasses.replace(recipe.export, format=recipe.store.export)

    def write(policy: Path, to: Path) -> None:
        origin, _ = origin_of(policy, settings.parity.prompts, seed=recipe.evaluation.seed, task=parts.task)
        for line in export(str(policy), to, settings, origin, say=say).lines():
            say(line)

    return write


def back_to(checkpoints: Checkpoints, step: int, parts: Parts, source: Source, judge: Evaluate) -> Progress:
    """A guard gives the run back to an earlier checkpoint: later ones are set aside, so that every MODEL of this run is that one."""
    checkpoints.set_aside(step)
    chosen = newest(checkpoints, parts.trainer.ranks)
    assert chosen is not None and chosen.step == step
    return restore(chosen, parts.trainer, source, judge)[0]


def save_reward_model(parts: Parts, model: RewardModel, folder: RunFolder, progress: Progress, say: Say) -> None:
    """`reward_model/` of the run: a folder of its own, with what its held-out scores look like, to bring them into one range later."""
    result = measure(parts, f"{folder.path.name}#{progress.step}")
    assert isinstance(result, PairEvaluation)
    scores = [s for pair in result.scores for s in pair]
    known = {k.removeprefix("eval/"): v for k, v in result.metrics().items()}
    spread = {"mean": statistics.fmean(scores), "std": statistics.pstdev(scores)} if scores else {"mean": 0.0, "std": 1.0}
    model.about = {**spread, "held_out": known, "run": folder.path.name, "step": progress.step}
    files = model.files()  # on every rank: a sharded model is put together
    if not folder.writes:
        return
    (folder.path / "reward_model").mkdir(exist_ok=True)
    for name, data in files.items():
        (folder.path / "reward_model" / name).write_bytes(data)
    say(f"reward model: {folder.path / 'reward_model'}, held out: {result.sentence()}")


def open_folder(recipe: Recipe, path: Path, resume: str, say: Say) -> tuple[RunFolder, bool]:
    """A fresh run folder, or the one that is there, its config checked against the new one."""
    if resume not in ("auto", "never"):
        raise BadInput(f"--resume {resume}", "auto or never", "--resume")
    if resume == "never" or not (path / "manifest.json").exists():
        free = shutil.disk_usage(path.parent if path.parent.exists() else Path.cwd()).free
        if free < 200_000_000:
            say(f"warning: only {free:,} bytes are free where the run is written")
        return RunFolder.create(path, tree_of(recipe), manifest(recipe, path.name)), False
    folder = RunFolder(path)
    folder.lock()
    changes = config_changes(folder.manifest()["config"], json.loads(json.dumps(tree_of(recipe), default=str)))
    fixed = [c for c in changes if not c.startswith(MAY_CHANGE)]
    if fixed:
        folder.unlock()
        raise BadInput(
            f"the config of {path} cannot change in {', '.join(fixed)} on resume",
            "only " + ", ".join(p.rstrip(".") for p in MAY_CHANGE),
            "the config, or take a fresh --run folder",
        )
    if changes:
        for line in changes.values():
            say(f"config changed: {line}")
        folder.write_config(tree_of(recipe))
        folder.event("note", 0, text="resumed with a changed config", changes=changes)
    return folder, True


MAY_CHANGE = (
    "training.steps",
    "training.epochs",
    "training.lr",
    "training.save_steps",
    "training.keep_last",
    "training.keep_best",
    "training.health.",
    "training.early_stop",
    "training.async_save",
    "training.second_destination",
    "training.save_grace_s",
    "training.dist.",
    "training.micro_batch_tokens",
    "training.max_grad_norm",
    "evaluation.",
    "monitor.",
    "store.",
    "rewards.",
    "rl_strategy.",
    "rollout.samples",
    "rollout.explain_every",
    "rollout.max_new_tokens",
    "rollout.temperature",
)


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> dict[str, str]:
    """Dotted key -> `key: old -> new` for everything that differs."""
    found: dict[str, str] = {}
    for key in sorted({*old, *new}):
        a, b, name = old.get(key), new.get(key), f"{where}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found |= config_changes(a, b, f"{name}.")
        elif a != b:
            found[name] = f"{name}: {a} -> {b}"
    return found


def manifest(recipe: Recipe, name: str) -> dict[str, Any]:
    """What this run is: its config, its code and the machine it runs on."""
    config = tree_of(recipe)
    text = json.dumps(config, sort_keys=True, default=str)
    return {
        "schema": 1,
        "name": name,
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "config": json.loads(text),
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "seed": recipe.training.seed,
        "code": {"policyloop": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count()},
    }


def evaluation_hook(parts: Parts, folder: RunFolder) -> Evaluate:
    """The held-out evaluation of this recipe (every = 0: none)."""
    s = parts.recipe.evaluation

    def found(version: str) -> dict[str, float]:
        return parts.trainer.ranks.led(measure(parts, version).metrics)  # measured by all, said by one

    patience = parts.recipe.training.early_stop
    return Evaluate(found, folder, s.every, s.metric, s.better == "higher", patience, folder.path.name, s.target)


def hooks_of(
    parts: Parts, folder: RunFolder, checkpoints: Checkpoints, judge: Evaluate, save: Save, exporter: Exporter, say: Say
) -> Sequence[Hook]:
    """The order matters: evaluation before the metrics line, the line before the checkpoint that claims it, stops last."""
    recipe = parts.recipe
    log = open_trackers(recipe.monitor.trackers if folder.writes else (), recipe.monitor.project, folder.path, tree_of(recipe))
    samples = Samples(folder, parts.trainer, parts.renderer, recipe.rollout.samples, recipe.rollout.explain_every)
    start = next((e for e in folder.rows("events.jsonl") if e["kind"] == "baseline"), None)
    watch = Watch(recipe.training.health, recipe.evaluation.metric, recipe.evaluation.better == "higher", start)
    health = Health(folder, recipe.training.health, parts.trainer, checkpoints, say, watch)
    every = None if recipe.model.reference_model_freeze else recipe.model.reference_sync_steps

    def follow(step: Step) -> None:
        """reference_model_freeze: false - the KL anchor becomes the policy as it is now."""
        if every and step.progress.step % every == 0:
            parts.policy.sync_reference()

    def rollouts(step: Step) -> None:
        if folder.writes:
            folder.rollouts(step.progress.step, encode(step.groups, dataclasses.asdict(sampling(recipe)), folder.path.name))

    def export(step: Step) -> None:
        exporter.observe(step.metrics)
        if save.saved == step.progress.step:
            exporter.saved()

    return [
        Agree(save.signals.ranks, save.signals),
        judge,
        *([rollouts] if recipe.rollout.save else []),
        samples,
        group_figures,
        health.measure,
        Metrics(folder, log),
        Console(say),
        health,
        follow,
        save,
        export,
        health.end,
        judge.check,
    ]


def resume_from(
    checkpoints: Checkpoints, parts: Parts, source: Source, judge: Evaluate, folder: RunFolder, planned: Progress, say: Say
) -> Progress:
    """Back to the newest whole checkpoint; metrics and samples are cut back to its step."""
    last = newest(checkpoints, parts.trainer.ranks)
    folder.cut(-1 if last is None else last.step)
    if last is None:
        say("no whole checkpoint: starting from step 0")
        return planned
    saved, state = restore(last, parts.trainer, source, judge)
    if state["threads"] != torch.get_num_threads():
        say(f"warning: saved with {state['threads']} threads, now {torch.get_num_threads()}: not bit for bit the same")
    progress = dataclasses.replace(saved, steps=planned.steps, updates=planned.updates)
    if parts.source.wants_weights:
        parts.source.publish(parts.trainer.weights(f"{folder.path.name}#{progress.step}"))
    folder.event("resume", progress.step, checkpoint=last.path.name)
    say(f"resumed at step {progress.step} of {progress.steps}")
    return progress


def known_from(like: Path | None, recipe: Recipe) -> dict[str, dict[str, Any]]:
    """`baseline` and `signal_check` of another run as they stand in its events, where its config differs in nothing but the algorithm
    (same model, data, rewards, sampling, evaluation, seed and group size); else nothing is known."""
    if like is None:
        return {}
    other = RunFolder(like)
    differs = config_changes(other.manifest()["config"], json.loads(json.dumps(tree_of(recipe), default=str)))
    if any(not key.startswith("rl_strategy.") or key == "rl_strategy.group_size" for key in differs):
        return {}
    known: dict[str, dict[str, Any]] = {}
    for row in other.rows("events.jsonl"):
        if row["kind"] in ("baseline", "signal_check"):
            measured = {k: float("nan") if v is None else v for k, v in row.items() if k not in ("kind", "step", "at")}
            known[row["kind"]] = {**measured, "measured_by": like.name}
    return known


def before_the_first_step(
    parts: Parts, judge: Evaluate, folder: RunFolder, force: bool, say: Say, known: Mapping[str, Mapping[str, Any]]
) -> None:
    """What it learns from; the untouched model, held out; then whether the training prompts give any signal at all. `known`: measured already."""
    recipe, task = parts.recipe, parts.task
    held_out, base = task.held_out(recipe.evaluation.seed), resolve(recipe.model.base_model_path)
    train = {g.prompt.id: g.prompt for g in parts.source.groups.values()} if isinstance(parts.source, ReplaySource) else None
    learnt = sources(
        task.train() if train is None else train.values(), held_out, recipe.data.task, base, recipe.model.base_model_path
    )
    folder.event("sources", 0, **learnt)
    if parts.source.wants_weights:
        parts.source.publish(parts.trainer.weights(f"{folder.path.name}#0"))
    if judge.every:
        found = known.get("baseline") or untouched(parts, folder.path.name, say)
        agreed = parts.trainer.ranks.led(lambda: found)
        folder.event("baseline", 0, **agreed)
        judge.best = agreed.get(judge.metric)
    check = recipe.training.signal_check
    if check is None or not isinstance(parts.source, RolloutSource):
        return
    seen = known.get("signal_check") or signal_of(parts.source, check.prompts)
    folder.event("signal_check", 0, **seen)
    signal, n, size = seen["signal_frac"], seen["prompts"], parts.source.params.n
    one, some, by = seen["pass_at_1"], seen["pass_at_g"], f" (measured by {seen['measured_by']})" if "measured_by" in seen else ""
    say(f"before training, {n} prompts x {size}: pass@1 {one:.3f}, pass@{size} {some:.3f}, groups with signal {signal:.0%}{by}")
    if signal < check.min_share and not force:
        failures = "".join(f"; {problem}" for problem in parts.source.scorer.problems())
        raise BadInput(
            f"only {signal:.0%} of {n} groups have any signal, so there is nothing to learn from{failures}",
            f"at least {check.min_share:.0%}; try easier prompts, a reward with partial credit, rollout.temperature 1.0, a larger "
            "rl_strategy.group_size or rollout.max_new_tokens",
            "the recipe, or --force to train anyway",
        )


def untouched(parts: Parts, name: str, say: Say) -> dict[str, Any]:
    """The model before its first step, held out: the `baseline` event."""
    result, recipe = measure(parts, f"{name}#0"), parts.recipe
    say(f"untouched model, held out: {result.sentence()}")
    limit = recipe.evaluation.max_new_tokens or recipe.rollout.max_new_tokens
    return {"limit_tokens": limit, **{k.removeprefix("eval/"): v for k, v in result.metrics().items()}}


def signal_of(source: RolloutSource, prompts: int) -> dict[str, Any]:
    """Answers to the first training prompts, scored as in training: the `signal_check` event."""
    n = min(prompts, len(source.cursor.prompts))
    draws = [Draw(f"signal/{d.uid}", d.prompt, d.epoch) for d in source.cursor.peek(n)]
    before = source.scorer.state()
    try:
        groups, _ = source.scorer.score(source.sample(draws, source.params))
    finally:
        source.scorer.load(before)  # a look is no step: running statistics must not count it, once or, after a kill here, twice
    values = [[s.value for s in g.scores if s.value is not None] for g in groups]
    metrics = [[s.metric for s in g.scores if s.metric is not None] for g in groups]
    if source.params.n == 1:  # one answer a prompt is compared with those to other prompts
        values = [[x for v in values for x in v]]
    signal = statistics.fmean(len(v) > 1 and max(v) - min(v) > 1e-8 for v in values)
    one = statistics.fmean(m > 0 for ms in metrics for m in ms) if any(metrics) else float("nan")
    some = statistics.fmean(any(m > 0 for m in ms) for ms in metrics)
    return {"prompts": n, "pass_at_1": one, "pass_at_g": some, "signal_frac": signal}


def leave(save: Save, source: Interruptible, stopped: GivenUp) -> Interrupted:
    """A signal: save where the run stands (the state before a given-up sampling) and say how to go on."""
    if source.progress is not None and save.signals.in_sampling_when_received:
        save.write(source.progress, source.before)
    save.checkpoints.wait()
    return Interrupted(f"{stopped} received: a checkpoint is saved", "the same command with --resume auto", "")
