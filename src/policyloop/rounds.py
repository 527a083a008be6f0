"""`policyloop improve`: rounds of curate, train, register, gate, release, watch; the first one from data, the later ones from feedback.

In: one YAML. Out: versions in the store, each with the set it learned from, its gate report and what became of it. What a round has done
is noted in the store (`improve/<name>/<round>/<stage>.json`, create-only): any process that runs the same command goes on from there.

Example:
    >>> Improver(load_improve(Path("improve.yaml")), say=print).once()
    {'trigger': {...}, 'curate': {...}, 'train-rl': {...}, 'register': {'version': 'answers@2'}, 'gate': {'verdict': 'SHIP', ...}, ...}
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from policyloop.collect import CollectSettings
from policyloop.config import build, load_yaml, to_tree
from policyloop.errors import BadInput, NotFound
from policyloop.evaluation.evaluate import Evaluation, evaluate
from policyloop.evaluation.gate import EVENTS, Report, gate
from policyloop.evaluation.model import open_model
from policyloop.evaluation.suite import Suite, contamination
from policyloop.gateway import ReleaseSettings
from policyloop.gateway.release import ACTIVE, begin
from policyloop.loop import Stage, improve
from policyloop.recipe import Recipe, load
from policyloop.store import Store, Version, actor, open_store
from policyloop.store.backend import Backend
from policyloop.store.moves import promote
from policyloop.tasks import DataSettings, Task, load_task
from policyloop.triggers import ALL, BudgetSettings, Signals, TriggerSettings, calm, due, over_budget, quiet, signals
from policyloop.types import Prompt, SamplingParams, settings

Note = dict[str, Any]
Done = Mapping[str, Note]


@settings
class TrainStage:
    """One training of a round. recipe: its YAML. base: the stage whose result it starts from (null = the one before; the first starts
    from its recipe's model, in later rounds from the stable version). set: changes of the recipe, `{name}` = the run of that stage."""

    name: str
    recipe: str
    base: str | None = None
    set: tuple[str, ...] = ()


@settings
class ImproveSettings:
    """A loop that closes. name: the model's name in the store. runs: where training runs lie. stages: the trainings of the first round
    (SFT, reward model, RL). again: those of later rounds; empty = the last of `stages`. replay: share of prompts that are the original
    data's. anchor: KL coefficient towards the stable version where the recipe has none; null = none. release: `promote` moves the pointer,
    `gateway` hands the candidate to the gateway's canary and waits for its verdict, `none` stops after the gate. canary: as the gateway's.
    The gate's rules are `evaluation.gate` of the last stage's recipe. watch_s: how long to wait for the gateway. force_gate: release whatever the gate says (recorded). quiet: spans without new rounds (UTC).
    cooldown_s: pause after a round. check_s: how often triggers are looked at."""

    name: str
    stages: tuple[TrainStage, ...]
    again: tuple[TrainStage, ...] = ()
    store: str | None = None
    runs: str = "runs"
    replay: float = 0.5
    anchor: float | None = 0.02
    collect: CollectSettings = field(default_factory=CollectSettings)
    force_gate: bool = False
    release: Literal["promote", "gateway", "none"] = "promote"
    canary: ReleaseSettings = field(default_factory=ReleaseSettings)
    watch_s: float = 7 * 86400.0
    triggers: TriggerSettings = field(default_factory=TriggerSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    quiet: tuple[str, ...] = ()
    cooldown_s: float = 3600.0
    check_s: float = 300.0

    def __post_init__(self) -> None:
        names = [s.name for s in self.stages]
        if not names or len(set(names)) < len(names):
            raise BadInput(f"improve.stages = {names}", "at least one, with different names", "improve.stages")
        for stage in (*self.stages, *self.again):
            if stage.base is not None and stage.base not in names:
                raise BadInput(f"stage {stage.name} starts from {stage.base}", ", ".join(names), "improve.stages")
        quiet(self.quiet, 0.0)


def load_improve(path: Path) -> ImproveSettings:
    """The `improve` table of a YAML; recipes are found from the working directory or beside the file. Errors: BadInput."""
    tree = load_yaml(path)
    if set(tree) != {"improve"}:
        raise BadInput(f"{path} has {', '.join(tree) or 'nothing'}", "one table `improve`", str(path))
    chosen = build(ImproveSettings, tree["improve"], "improve")
    return replace(chosen, stages=_found(chosen.stages, path), again=_found(chosen.again, path))


def _found(stages: Sequence[TrainStage], config: Path) -> tuple[TrainStage, ...]:
    made = []
    for stage in stages:
        places = [Path(stage.recipe), config.parent / stage.recipe]
        place = next((p for p in places if p.exists()), None)
        if place is None:
            raise BadInput(
                f"recipe {stage.recipe} of stage {stage.name} does not exist", "a YAML file", f"improve.stages.{stage.name}"
            )
        made.append(replace(stage, recipe=str(place)))
    return tuple(made)


@dataclass(frozen=True)
class RoundNotes:
    """The notes of one round, create-only in the store."""

    backend: Backend
    folder: str

    def read(self, stage: str) -> Note | None:
        key = f"{self.folder}/{stage}.json"
        return None if self.backend.stat(key) is None else json.loads(self.backend.read(key))

    def write(self, stage: str, note: Note) -> Note:
        data = json.dumps({"at": time.time(), **note}, ensure_ascii=False, default=str).encode()
        self.backend.create(f"{self.folder}/{stage}.json", data)
        return self.read(stage) or note


class Improver:
    """`once`: the round that is due or unfinished. `forever`: again and again."""

    def __init__(
        self, chosen: ImproveSettings, say: Callable[[str], None] = print, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.chosen, self.say, self.clock = chosen, say, clock
        self.store: Store = open_store(chosen.store)
        self.collect = replace(chosen.collect, store=chosen.collect.store or chosen.store)
        self.home = f"improve/{chosen.name}"

    # --- when ---------------------------------------------------------------------------------------------------------------

    def rounds(self) -> list[int]:
        return [int(name) for name in self.store.backend.folders(self.home)]

    def notes(self, number: int) -> RoundNotes:
        return RoundNotes(self.store.backend, f"{self.home}/{number:06d}")

    def open_round(self, force: bool = False) -> int | str:
        """The round to work on: the unfinished one, or a new one whose trigger is noted. Text: why none is due."""
        numbers, now = self.rounds(), self.clock()
        if numbers and self.notes(numbers[-1]).read("end") is None:
            return numbers[-1]
        reason = "asked for" if force else self._reason(numbers, now)
        if reason.startswith("wait"):
            return reason
        number = (numbers[-1] if numbers else 0) + 1
        self.notes(number).write("trigger", {"reason": reason})
        return number

    def _reason(self, numbers: Sequence[int], now: float) -> str:
        if self.stable() is None:
            return "first: no version is stable yet"
        if quiet(self.chosen.quiet, now):
            return "wait: quiet hours"
        ended = self.notes(numbers[-1]).read("end") if numbers else None
        if ended is not None and now - ended["at"] < self.chosen.cooldown_s:
            return f"wait: {self.chosen.cooldown_s - (now - ended['at']):.0f} s of improve.cooldown_s are left"
        spent = over_budget(self.chosen.budget, [self._spent(n) for n in numbers], now)
        if spent is not None:
            return f"wait: {spent}"
        seen = self.signals(now)
        return due(self.chosen.triggers, seen, self._armed(numbers, seen)) or f"wait: {seen}"

    def _spent(self, number: int) -> tuple[float, float]:
        notes, begun = self.notes(number), self.notes(number).read("trigger") or {}
        trained = [notes.read(f"train-{s.name}") or {} for s in (*self.chosen.stages, *self.chosen.again)]
        return float(begun.get("at", 0.0)), sum(float(n.get("seconds", 0.0)) for n in trained)

    def _armed(self, numbers: Sequence[int], seen: Signals) -> list[str]:
        """Levels that may open a round: all but the one that opened the last, until it has been calm since."""
        if not numbers:
            return list(ALL)
        notes = self.notes(numbers[-1])
        opened = str((notes.read("trigger") or {}).get("reason", "")).partition(":")[0]
        for name in calm(self.chosen.triggers, seen):
            if name == opened:
                notes.write(f"calm-{name}", {})
        return [name for name in ALL if name != opened or notes.read(f"calm-{name}") is not None]

    def signals(self, now: float) -> Signals:
        from policyloop.collect.curate import exchanges_of, new_evidence, valued

        rows = exchanges_of(self.collect, now - self.collect.days * 86400, now)
        return signals(rows, valued(rows, self.collect), new_evidence(self.collect, now=now), self.chosen.triggers, now)

    # --- what ---------------------------------------------------------------------------------------------------------------

    def once(self, force: bool = False) -> dict[str, Note] | None:
        """Work on a round to its end; None where none is due. Errors: whatever a stage meets; the next call goes on there."""
        number = self.open_round(force)
        if isinstance(number, str):
            self.say(number)
            return None
        done = improve(self.stages(number), self.notes(number))
        end = self.outcome(done)
        self.notes(number).write("end", end)
        self.say(f"round {number}: {end['outcome']} ({end['reason']})")
        return {**done, "end": end}

    def forever(self, pause: Callable[[float], None] = time.sleep) -> None:
        while True:
            self.once()
            pause(self.chosen.check_s)

    def stages(self, number: int) -> list[Stage]:
        first = self.first(number)
        trainings = self.chosen.stages if first else self.chosen.again or self.chosen.stages[-1:]
        said: Callable[[str, Callable[[Done], Note]], Stage] = lambda name, run: Stage(name, self._said(number, name, run))  # noqa: E731
        return [
            Stage("trigger", lambda done: {"reason": "asked for"}),  # noted when the round was opened
            said("stable", lambda done: {"version": None if self.stable() is None else str(self.stable())}),
            *([] if first else [said("curate", lambda done: self.curate(trainings[-1]))]),
            *(
                said(f"train-{stage.name}", lambda done, i=i, stage=stage: self.train(number, stage, trainings[:i], done))
                for i, stage in enumerate(trainings)
            ),
            said("register", lambda done: self.register(trainings[-1], done)),
            said("gate", lambda done: self.gate(trainings[-1], done)),
            said("release", lambda done: self.released(done)),
            said("watch", lambda done: self.watch(done)),
        ]

    def _said(self, number: int, name: str, run: Callable[[Done], Note]) -> Callable[[Done], Note]:
        def work(done: Done) -> Note:
            self.say(f"round {number}: {name}")
            return run(done)

        return work

    def first(self, number: int) -> bool:
        """Fixed once it is noted: a version promoted meanwhile does not turn a first round into a later one."""
        noted = self.notes(number).read("stable")
        return self.stable() is None if noted is None else noted["version"] is None

    def stable(self) -> Version | None:
        number = self.store.state(self.chosen.name).stable
        return None if number is None else self.store.version(self.chosen.name, number)

    # --- the stages ---------------------------------------------------------------------------------------------------------

    def curate(self, last: TrainStage) -> Note:
        from policyloop.collect.curate import curate

        made = curate(self.collect, [load(Path(last.recipe), last_sets(last)).data])
        if made.version is None or not made.counts.get("prompts"):
            return {
                "ends": True,
                "outcome": "nothing to learn",
                "reason": "no question has an answer to learn from",
                **made.counts,
            }
        return {"set": str(made.version), "id": made.version.id, "counts": made.counts}

    def recipe(self, stage: TrainStage, before: Sequence[TrainStage], done: Done) -> Recipe:
        """The stage's recipe with its start, and in later rounds with feedback as data and the anchor to the stable version."""
        runs = {name.removeprefix("train-"): note["run"] for name, note in done.items() if name.startswith("train-")}
        stable = done["stable"]["version"]
        base = stage.base or (before[-1].name if before else None)
        start = runs.get(base or "") or (None if stable is None else str(self.store.fetch(self.store.resolve(stable))))
        changes = [text.format(**runs) for text in stage.set]
        if start is not None:
            changes.append(f"model.base_model_path={json.dumps(start)}")
        recipe = load(Path(stage.recipe), changes)
        if stable is not None and self.chosen.anchor is not None and getattr(recipe.rl_strategy, "kl", 0) is None:
            recipe = load(Path(stage.recipe), [*changes, f"rl_strategy.kl.coef={self.chosen.anchor}"])
        if stable is None:
            return replace(recipe, store=None)
        original = {k: v for k, v in to_tree(recipe.data).items() if v is not None}
        options = {"set": done["curate"]["set"], "store": self.store.uri, "replay": self.chosen.replay, "original": original}
        return replace(recipe, store=None, data=DataSettings(task="feedback", options=options))

    def train(self, number: int, stage: TrainStage, before: Sequence[TrainStage], done: Done) -> Note:
        """Resumes by itself where a run was cut short. Errors: Interrupted (go on with the same command)."""
        from policyloop.run import start

        path = Path(self.chosen.runs) / f"{self.chosen.name}-{number}-{stage.name}"
        began = time.monotonic()
        run = start(self.recipe(stage, before, done), path, resume="auto", say=self.say)
        return {"run": str(run.folder.resolve()), "steps": run.progress.step, "seconds": time.monotonic() - began}

    def register(self, last: TrainStage, done: Done) -> Note:
        from policyloop.training.register import register

        version = register(self.store, Path(done[f"train-{last.name}"]["run"]), name=self.chosen.name, which="best")
        return {"version": str(version), "id": version.id}

    def gate(self, last: TrainStage, done: Done) -> Note:
        """The candidate against the stable version on the original held-out prompts, by the recipe's `evaluation.gate`; the report goes
        into the log. A first version has nothing to compare with: it must reach `min_accuracy`."""
        candidate, recipe = self.store.resolve(done["register"]["version"]), load(Path(last.recipe), last_sets(last))
        stable = done["stable"]["version"]
        if stable is None:
            found, needed = measured(self.store, candidate, recipe)[""], recipe.evaluation.gate.min_accuracy or 0.0
            verdict = "SHIP" if found.accuracy.value >= needed else "HOLD"
            reason = f"first version: accuracy {found.accuracy} (asked for {needed})"
            tree: Note = {"verdict": verdict, "reason": reason}
        else:
            report = judged(self.store, self.store.resolve(stable), candidate, recipe)
            verdict, reason, tree = report.verdict, report.reason, report.tree()
        event = self.store.append(
            candidate.name, EVENTS[verdict], actor(), reason, version=candidate.number, report=tree, tries=8
        )
        note: Note = {"verdict": verdict, "reason": reason, "report": event.report}
        if verdict != "SHIP" and not self.chosen.force_gate:
            return {**note, "ends": True, "outcome": "held by the gate"}
        return note

    def released(self, done: Done) -> Note:
        candidate, verdict = self.store.resolve(done["register"]["version"]), done["gate"]["verdict"]
        reason = f"gate {verdict}: {done['gate']['reason']}"
        if self.chosen.release == "none":
            return {"ends": True, "outcome": "left to you", "reason": f"{candidate} passed the gate"}
        if self.chosen.release == "promote" or done["stable"]["version"] is None:
            if self.store.state(candidate.name).stable != candidate.number:
                promote(self.store, candidate, by=actor(), reason=reason, report=done["gate"]["report"], force=verdict != "SHIP")
            return {"mode": "promote"}
        state = self.store.state(candidate.name)
        if state.after.release.get("candidate") == candidate.number and state.after.release.get("state") in ACTIVE:
            return {"mode": "gateway", "release": state.after.release["id"]}
        name, now = uuid.uuid4().hex[:12], self.clock()
        move = begin(state.after, candidate.number, self.chosen.canary, now, by=actor(), id=name)
        self.store.append(
            candidate.name,
            move.type,
            actor(),
            f"{move.reason}; {reason}",
            lambda _: move.after,
            version=move.version,
            expect_n=state.n,
        )
        return {"mode": "gateway", "release": name}

    def watch(self, done: Done, poll_s: float = 0.25) -> Note:
        """Kept or rolled back: with a gateway its verdict, awaited. Errors: NotFound after watch_s without one."""
        candidate, until = self.store.resolve(done["register"]["version"]), time.monotonic() + self.chosen.watch_s
        while True:
            state = self.store.state(candidate.name)
            if state.after.release.get("state", "idle") not in ACTIVE or state.after.release.get("candidate") != candidate.number:
                kept = state.stable == candidate.number
                return {"outcome": "kept" if kept else "rolled back", "reason": state.reason}
            if done["release"]["mode"] == "promote":
                return {"outcome": "kept", "reason": "promoted"}
            if time.monotonic() > until:
                raise NotFound(f"the release of {candidate} has no end after {self.chosen.watch_s:.0f} s", "a running gateway")
            time.sleep(poll_s)

    def outcome(self, done: Done) -> Note:
        """Of the stage that ended the round, with what it was about."""
        last = list(done.values())[-1]
        about = {"version": done.get("register", {}).get("version"), "set": done.get("curate", {}).get("set")}
        return {"outcome": last.get("outcome", "done"), "reason": last.get("reason", ""), **about}


def last_sets(stage: TrainStage) -> list[str]:
    """The changes that speak of no run: enough to know data and evaluation."""
    return [text for text in stage.set if "{" not in text]


def measured(store: Store, version: Version, recipe: Recipe) -> dict[str, Evaluation]:
    """A stored version on a recipe's held-out prompts (name "") and on its regression suites, decoded as its evaluation says."""
    s, task = recipe.evaluation, load_task(recipe.data, recipe.training.seed)
    params = SamplingParams(
        max_new_tokens=s.max_new_tokens or recipe.rollout.max_new_tokens,
        temperature=s.temperature,
        stop=recipe.rollout.stop,
        seed=s.seed,
        n=s.samples,
    )
    suites: dict[str, tuple[Task, Sequence[Prompt]]] = {"": (task, list(task.held_out(s.seed))[: s.prompts])}
    for name, file in s.gate.regressions.items():
        suite = Suite.load(Path(file))
        suites[name] = (load_task(suite.data, 0), suite.prompts)
    with open_model(str(store.fetch(version)), template=recipe.model.template) as opened:
        return {
            name: evaluate(opened.engine, opened.renderer, judge, prompts, params, version=str(version))
            for name, (judge, prompts) in suites.items()
        }


def judged(store: Store, stable: Version, candidate: Version, recipe: Recipe) -> Report:
    """The gate's report. What the candidate was trained on (feedback too) is held against the items."""
    rules, task = recipe.evaluation.gate, load_task(recipe.data, recipe.training.seed)
    items = list(task.held_out(recipe.evaluation.seed))[: recipe.evaluation.prompts]
    data = candidate.lineage.get("config", {}).get("data")
    learnt = load_task(build(DataSettings, data, "data"), 0).train() if data else ()
    old, new = measured(store, stable, recipe), measured(store, candidate, recipe)
    return gate(
        old[""],
        new[""],
        rules,
        regressions={name: (old[name], new[name]) for name in old if name},
        contaminated=contamination(items, learnt, rules.near, task),
    )
