"""What happens after every step besides learning: samples, held-out evaluation, metrics, health, checkpoints, the terminal, signals.

Each hook is a small object called with the finished `Step`, in the order of `run.hooks_of`. A hook that wants the run to end raises `Stop`.

Example:
    >>> train(source, trainer, start, name="run", hooks=[Metrics(folder, log), Console(print), save])
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, Protocol

import torch

from policyloop.engine import Weights
from policyloop.errors import NotFound
from policyloop.loop import Step, Stop
from policyloop.models.memory import peak_rss_bytes
from policyloop.monitor.guards import FACTORS, LEAST, MOST, Finding
from policyloop.monitor.health import Watch
from policyloop.rollout.batch import to_batch
from policyloop.rollout.source import Source
from policyloop.training import HealthSettings
from policyloop.training.checkpoint import Checkpoint, Checkpoints
from policyloop.training.folder import RunFolder
from policyloop.training.ranks import Ranks
from policyloop.training.trainer import Trainer
from policyloop.types import Group, Progress


class TokenTexts(Protocol):
    """What samples need of `models.template.Renderer`."""

    def token_texts(self, ids: Sequence[int]) -> list[str]: ...


# --- what was sampled -------------------------------------------------------------------------------------------------------


@dataclass
class Samples:
    """Writes `samples/<step>.jsonl`; at every `explain_every`-th step the first group also gets its log-probs after the update."""

    folder: RunFolder
    trainer: Trainer
    renderer: TokenTexts
    every: int
    explain_every: int

    def __call__(self, step: Step) -> None:
        number = step.progress.step
        last = number == step.progress.steps
        if not self.every or not (last or (number - 1) % self.every == 0):
            return
        groups = self.trainer.seen.groups
        explained = last or (self.explain_every > 0 and (number - 1) % self.explain_every == 0)
        after = self._after(groups[:1]) if explained and groups else []
        rows, position = [], 0
        for group in groups:
            size = len(group.completions)
            advantages = self.trainer.seen.advantages_N[position : position + size]
            rows.append(self._row(number, group, advantages, after if position == 0 else []))
            position += size
        self.folder.samples(number, rows)

    def _after(self, groups: Sequence[Group]) -> list[list[float]]:
        batch, tokens = to_batch(groups)
        logprobs_NT = self.trainer.logprobs(batch, tokens)
        return [row[: len(t.completion)] for row, t in zip(logprobs_NT.tolist(), tokens, strict=True)]

    def _row(self, step: int, group: Group, advantages: Sequence[float], after: Sequence[Sequence[float]]) -> dict[str, Any]:
        shown = group.prompt.text or "\n".join(m.content for m in group.prompt.messages or ())
        completions = [
            {
                "text": c.text,
                "token_ids": list(c.token_ids),
                "tokens": self.renderer.token_texts(c.token_ids),
                "logprobs": list(c.logprobs),
                "logprobs_after": list(after[i]) if after else None,
                "finish_reason": c.finish_reason,
                "version": c.policy_version,
                "reward": s.value,
                "components": dict(s.components),
                "metric": s.metric,
                "advantage": advantages[i],
                "keep": group.keep[i],
                "length": c.length,
            }
            for i, (c, s) in enumerate(zip(group.completions, group.scores, strict=True))
        ]
        head = {"step": step, "uid": group.uid, "prompt_id": group.prompt.id, "prompt": shown, "target": group.prompt.target}
        if group.prompt.messages is not None:
            head["messages"] = [asdict(m) for m in group.prompt.messages]
        return {**head, "completions": completions}


# --- held-out evaluation, which alone decides "best" ------------------------------------------------------------------------


@dataclass
class Evaluate:
    """Every `every` steps and at the end: `measure(version)` gives `eval/*` figures; the score of `metric` decides best and early stop."""

    measure: Callable[[str], dict[str, float]]
    folder: RunFolder
    every: int
    metric: str
    higher_is_better: bool
    patience: int | None
    name: str
    target: float | None = None
    best: float | None = None
    since_best: int = 0
    score: float | None = None

    def __call__(self, step: Step) -> None:
        number = step.progress.step
        self.score = None
        if not self.every or (number % self.every and number != step.progress.steps):
            return
        found = self.measure(f"{self.name}#{number}")
        step.metrics.update(found)
        self.score = found.get(f"eval/{self.metric}")
        self.folder.event("evaluation", number, **found)
        if self.score is None:
            return
        better = self.best is None or (self.score > self.best if self.higher_is_better else self.score < self.best)
        self.best, self.since_best = (self.score, 0) if better else (self.best, self.since_best + 1)

    def check(self, step: Step) -> None:
        """Target reached, or early stop; after the checkpoint of this step is on disk."""
        if self.target is not None and self.score is not None:
            reached = self.score >= self.target if self.higher_is_better else self.score <= self.target
            if reached and step.progress.step < step.progress.steps:
                raise Stop(f"{self.metric} {self.score:.3f} reached the target {self.target:g}")
        if self.patience is not None and self.since_best >= self.patience:
            raise Stop(f"{self.since_best} evaluations in a row brought no better {self.metric} than {self.best:.3f}")

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "since_best": self.since_best}

    def load(self, state: Mapping[str, Any]) -> None:
        self.best, self.since_best = state["best"], state["since_best"]


# --- figures ----------------------------------------------------------------------------------------------------------------


@dataclass
class Metrics:
    """One line to metrics.jsonl and to the trackers."""

    folder: RunFolder
    log: Callable[[Mapping[str, float], int], None]

    def __call__(self, step: Step) -> None:
        step.metrics["sys/peak_rss_bytes"] = float(peak_rss_bytes())
        step.metrics["sys/threads"] = float(torch.get_num_threads())
        self.folder.metrics(dict(sorted(step.metrics.items())))
        self.log(step.metrics, step.progress.step)


def group_figures(step: Step) -> None:
    """Adds what only the groups know."""
    for name, value in group_metrics(step.groups, step.progress).items():
        step.metrics.setdefault(name, value)  # a source that dropped groups knows what it sampled
    step.metrics["tokens/ratio"] = step.metrics.get("tokens/trained", 0.0) / max(1.0, step.metrics["tokens/generated"])


def group_metrics(groups: Sequence[Group], progress: Progress) -> dict[str, float]:
    """What the sampled groups look like: lengths, right and wrong, which version answered."""
    completions = [c for g in groups for c in g.completions]
    right = [s.metric for g in groups for s in g.scores]
    lengths = [c.length for c in completions]
    if not lengths:
        return {"tokens/generated": 0.0}
    ordered = sorted(lengths)
    of = {kind: [n for n, m in zip(lengths, right, strict=True) if m is not None and (m > 0) == kind] for kind in (True, False)}
    known = [m for m in right if m is not None]
    versions = [int(c.policy_version.rpartition("#")[2] or 0) for c in completions if "#" in c.policy_version]
    found = {
        "tokens/generated": float(sum(len(c.token_ids) for c in completions)),
        "length/mean": statistics.fmean(lengths),
        "length/p50": float(ordered[len(ordered) // 2]),
        "length/p95": float(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]),
        "length/max": float(ordered[-1]),
        "length/truncated_frac": statistics.fmean(c.finish_reason == "length" for c in completions),
        "length/empty_frac": statistics.fmean(n == 0 for n in lengths),
        "policy_version_lag": float(progress.step - 1 - min(versions)) if versions else 0.0,
        "correct_per_1k_tokens": 1000 * sum(known) / max(1, sum(lengths)),
    }
    if known:
        found["metric/mean"] = statistics.fmean(known)
    return {**found, **{f"length/{n}": statistics.fmean(of[k]) for n, k in (("correct", True), ("wrong", False)) if of[k]}}


# --- health that acts -------------------------------------------------------------------------------------------------------


@dataclass
class Health:
    """Guards: findings become events and lines (each once until it clears) and do what `training.health.actions` says; too many bad or
    empty steps in a row end the run. What the watch knows it reads from metrics.jsonl, so a resumed run goes on as if nothing had been."""

    folder: RunFolder
    settings: HealthSettings
    trainer: Trainer
    checkpoints: Checkpoints
    say: Callable[[str], None]
    watch: Watch
    ending: Stop | None = None

    def __post_init__(self) -> None:
        for row in self.folder.rows("metrics.jsonl"):
            self.watch.derive(row)
            self.watch.judge(row)

    def measure(self, step: Step) -> None:
        """Before the metrics line is written: the `health/*` figures."""
        step.metrics.update(self.watch.derive(step.metrics))

    def __call__(self, step: Step) -> None:
        number = step.progress.step
        for finding, new in self.watch.judge(step.metrics):
            done = self._act(finding)
            if new or done:
                self.folder.event("guard", number, **asdict(finding), done=done, sentence=finding.sentence)
                self.say(f"{finding.severity}: {finding.sentence}" + (f" ({done})" if done else ""))
        if self.trainer.bad_in_a_row >= self.settings.max_bad_steps:
            self._last_good()
        if self.trainer.skipped_in_a_row >= self.settings.max_skipped_steps:
            raise Stop(
                f"{self.trainer.skipped_in_a_row} steps in a row had no group with any signal (all rewards of a prompt were equal)",
                advice="easier or harder prompts, a larger rl_strategy.group_size, a reward with more than one value",
                failed=True,
            )

    def end(self, step: Step) -> None:
        """After the checkpoint of this step is on disk: what a guard has decided about the run."""
        if self.ending is not None:
            raise self.ending

    def _act(self, finding: Finding) -> str:
        """Do what is due; in words, empty where a guard only speaks or no factor has room left."""
        if finding.action == "stop":
            self.ending = Stop(f"{finding.guard}: {finding.sentence}", failed=True, advice=finding.advice)
            return "the run stops"
        if finding.action == "restore":
            self.ending = self._best(finding)
            return "the run stops at its best checkpoint"
        changed = []
        for path, factor in FACTORS.get(finding.action, {}).items():
            before = self.trainer.factors.get(path, 1.0)
            after = min(MOST, max(LEAST, before * factor))
            if after != before:
                self.trainer.factors[path] = after
                changed.append(f"{path} is now {after:g} times what the recipe says")
        return ", ".join(changed)

    def _best(self, finding: Finding) -> Stop:
        """Go back to the best checkpoint: later ones are set aside. Without one that beats the start the run has failed."""
        self.checkpoints.wait()
        self.trainer.ranks.meet()
        best = self.checkpoints.best()
        border = self.watch.border
        if best is None or (border is not None and self.watch.sign * (best.score or 0.0) < border):
            return Stop(f"{finding.sentence} (no checkpoint is better than the start)", failed=True, advice=finding.advice)
        return Stop(f"{finding.sentence} (the checkpoint of step {best.step} is restored)", restore=best.step)

    def _last_good(self) -> None:
        good = newest(self.checkpoints, self.trainer.ranks)
        if good is not None:
            self.trainer.load(good.files())
        where = "no checkpoint was there to restore" if good is None else f"the checkpoint of step {good.step} was restored"
        raise Stop(
            f"{self.trainer.bad_in_a_row or self.settings.max_bad_steps} updates in a row were not finite; {where}",
            advice="lower training.lr, or look at bad/ in the run folder for the rows",
            failed=True,
        )


def dump_bad(folder: RunFolder) -> Callable[[Mapping[str, Any]], None]:
    """Where a refused update's rows are written: `bad/<step>-<update>.json`."""

    def dump(info: Mapping[str, Any]) -> None:
        if not folder.writes:
            return
        target = folder.path / "bad"
        target.mkdir(exist_ok=True)
        (target / f"{info['step'] + 1:08d}-{info['update']}.json").write_text(json.dumps(info))
        folder.event("refused", info["step"] + 1, update=info["update"], loss=info["loss"], grad_norm=info["grad_norm"])

    return dump


# --- checkpoints and signals ------------------------------------------------------------------------------------------------


class Signals:
    """SIGTERM and SIGINT: while sampling, the step is given up at once (nothing has changed yet); during an update it is finished first.
    Either way a checkpoint follows and the run leaves with exit code 75. A second signal leaves at once.

    With several ranks a signal to any of them counts for all, from the next moment at which they `agree` (the start of a step and
    its end): until then nobody acts on it, and a second one is taken for the launcher's echo of the first."""

    def __init__(self, ranks: Ranks | None = None) -> None:
        self.ranks = ranks or Ranks()
        self.received: str | None = None
        self.pending: str | None = None
        self.sampling = self.in_sampling_when_received = False

    @contextmanager
    def listen(self) -> Iterator[Signals]:
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {s: signal.signal(s, self._handle) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agree(self) -> None:
        """A collective: what any rank was told is known to all."""
        told = next((t for t in self.ranks.gather(self.pending) if t), None)
        self.received = self.received or told

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.ranks.world > 1:
            self.pending = signal.Signals(number).name
            return
        if self.received is not None:
            os._exit(75)
        self.received = signal.Signals(number).name
        if self.sampling:
            self.in_sampling_when_received = True
            raise GivenUp(self.received)


class GivenUp(BaseException):
    """Raised inside sampling by a signal. A BaseException, so that no reward's `except Exception` swallows it."""


@dataclass
class Agree:
    """The first hook: rank 0's figures and what any rank was told become everyone's, so that every later hook decides alike."""

    ranks: Ranks
    signals: Signals

    def __call__(self, step: Step) -> None:
        self.signals.agree()
        step.metrics.update(self.ranks.led(lambda: dict(step.metrics)))


@dataclass
class Interruptible:
    """A source whose `next` may be given up half-way: `before` is its state at the start of the step."""

    inner: Source
    signals: Signals
    before: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None

    @property
    def wants_weights(self) -> bool:
        return self.inner.wants_weights

    @property
    def metrics(self) -> dict[str, float]:
        return self.inner.metrics

    def next(self, progress: Progress) -> list[Group]:
        self.before, self.progress = self.inner.state(), progress
        self.signals.agree()
        self.signals.sampling = True
        try:
            if self.signals.received:
                self.signals.in_sampling_when_received = True
                raise GivenUp(self.signals.received)
            return self.inner.next(progress)
        finally:
            self.signals.sampling = False

    def publish(self, weights: Weights) -> None:
        self.inner.publish(weights)

    def state(self) -> dict[str, Any]:
        return self.inner.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.inner.load(state)


@dataclass
class Save:
    """Writes a checkpoint every `every` steps and at the end; `state.json` holds all that is not the trainer's own."""

    checkpoints: Checkpoints
    trainer: Trainer
    source: Source
    evaluate: Evaluate
    folder: RunFolder
    every: int
    signals: Signals
    saved: int = -1

    def __call__(self, step: Step) -> None:
        number = step.progress.step
        due = number % self.every == 0 or number == step.progress.steps
        if due or self.signals.received or self.evaluate.score is not None:
            self.write(step.progress, self.source.state(), self.evaluate.score)
        if self.signals.received and number < step.progress.steps:
            raise GivenUp(self.signals.received)

    def write(self, progress: Progress, source: Mapping[str, Any], score: float | None = None) -> None:
        if progress.step == self.saved:
            return
        state = {
            "progress": asdict(progress),
            "source": dict(source),
            "evaluate": self.evaluate.state(),
            "threads": torch.get_num_threads(),
            "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
        }
        self.checkpoints.save(progress.step, {**self.trainer.files(), "state.json": json.dumps(state).encode()}, score)
        self.saved = progress.step
        self.folder.event("save", progress.step, score=score)


def newest(checkpoints: Checkpoints, ranks: Ranks) -> Checkpoint | None:
    """The last whole checkpoint, the same one on every rank (the folder is shared). Errors: NotFound where a rank does not see it."""
    checkpoints.wait()
    step = ranks.led(lambda: None if (found := checkpoints.latest()) is None else found.step)
    if step is None:
        return None
    seen = next((c for c in checkpoints.all() if c.step == step), None)
    if not all(ranks.gather(seen is not None)):
        raise NotFound(
            f"a rank does not see the checkpoint of step {step}", "a run folder on storage that all machines share", "--run"
        )
    return seen


def restore(checkpoint: Checkpoint, trainer: Trainer, source: Source, evaluate: Evaluate) -> tuple[Progress, dict[str, Any]]:
    """Put a checkpoint back into all that it came from. Returns the progress and the raw state (threads, versions)."""
    trainer.load(checkpoint.files())
    state = json.loads(checkpoint.read("state.json"))
    source.load(state["source"])
    evaluate.load(state["evaluate"])
    return Progress(**state["progress"]), state


# --- the terminal -----------------------------------------------------------------------------------------------------------


@dataclass
class Console:
    """One line a step: reward, held-out accuracy, length, signal share, tokens/s, time left. Not the loss: near 0 is normal."""

    say: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)
    first: int | None = None
    held_out: str = ""

    def __call__(self, step: Step) -> None:
        m, number = step.metrics, step.progress.step
        if self.first is None:
            self.first = number - 1
            self.began = time.monotonic() - m.get("time/step_s", m.get("time/rollout_s", 0.0) + m.get("time/update_s", 0.0))
        if "eval/accuracy" in m:
            self.held_out = f"held-out {m['eval/accuracy']:.3f} [{m['eval/accuracy_low']:.3f}, {m['eval/accuracy_high']:.3f}]"
        done = number - self.first
        left = (time.monotonic() - self.began) / done * (step.progress.steps - number)
        figures = [
            f"step {number}/{step.progress.steps}",
            f"reward {m['reward/mean']:.3f}"
            if "reward/mean" in m
            else f"loss {sum(m[k] for k in m if k.startswith('loss/')):.3f}",
            f"pairs {m['rewards/accuracy']:.0%}, margin {m['rewards/margin']:.3f}" if "rewards/margin" in m else "",
            f"length {m.get('length/mean', 0):.1f}",
            f"signal {m['groups/signal_frac']:.0%}" if "groups/signal_frac" in m else "",
            f"{m['time/rollout_tokens_per_s']:.0f} tok/s" if "time/rollout_tokens_per_s" in m else "",
            f"{clock(left)} left",
            self.held_out if "eval/accuracy" in m else "",
        ]
        self.say("  ".join(f for f in figures if f))


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
