"""The only two loops. `train`: next, update, publish, hooks. `improve`: one stage of a round after the other, each noted when done.

Sync and async, SFT and PPO, one process and a cluster differ in what they pass in.

Example:
    >>> train(source, trainer, Progress(steps=20, updates=20), name="run", hooks=[log, save])
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from policyloop.engine import Weights
from policyloop.rollout.source import Source
from policyloop.types import Group, Progress


class Learner(Protocol):
    """What the loop needs of `training.Trainer`."""

    updates: int

    def update(self, groups: Sequence[Group], progress: Progress) -> dict[str, float]: ...

    def weights(self, version: str) -> Weights: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step, as hooks see it: `progress` counts it already, `metrics` may be added to by earlier hooks."""

    progress: Progress
    groups: list[Group]
    metrics: dict[str, float]


class Stop(Exception):
    """A hook ends the run in good order: `reason` is one sentence, `info` goes into the event; `progress` is where the run stood."""

    def __init__(self, reason: str, **info: Any) -> None:
        super().__init__(reason)
        self.reason, self.info = reason, info
        self.progress: Progress | None = None


Hook = Callable[[Step], None]


def train(source: Source, learner: Learner, start: Progress, *, name: str, hooks: Sequence[Hook] = ()) -> Progress:
    """Train from `start` to `start.steps`. Version `<name>#<n>` is what step n+1 samples from. Hooks run in order; `Stop` ends it."""
    progress = start
    while progress.step < progress.steps:
        groups = source.next(progress)
        metrics = learner.update(groups, progress)
        progress = replace(progress, step=progress.step + 1, update=learner.updates)
        if source.wants_weights:
            started = time.monotonic()
            source.publish(learner.weights(f"{name}#{progress.step}"))
            metrics = {**metrics, "time/publish_s": time.monotonic() - started}
        done = Step(progress, groups, {"step": progress.step, **source.metrics, **metrics})
        try:
            for hook in hooks:
                hook(done)
        except Stop as stop:
            stop.progress = progress
            raise
    return progress


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a round. `run` gets what the stages before it gave, by name, and gives what is worth noting (JSON). A note with
    `ends` ends the round: nothing after it is due."""

    name: str
    run: Callable[[Mapping[str, dict[str, Any]]], dict[str, Any]]


class Notes(Protocol):
    """What is noted of one round; `write` is create-only and gives what stands there: of two that finish a stage, one is right."""

    def read(self, stage: str) -> dict[str, Any] | None: ...

    def write(self, stage: str, note: dict[str, Any]) -> dict[str, Any]: ...


def improve(stages: Sequence[Stage], notes: Notes) -> dict[str, dict[str, Any]]:
    """One round. A stage whose note is there is not run again, so a round that was cut short goes on where it stood."""
    done: dict[str, dict[str, Any]] = {}
    for stage in stages:
        note = notes.read(stage.name)
        done[stage.name] = notes.write(stage.name, stage.run(done)) if note is None else note
        if done[stage.name].get("ends"):
            break
    return done
