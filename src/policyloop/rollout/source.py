"""The rollout source: `next` samples and scores one step's groups, `publish` gives the engine the new weights.

In: prompts, an engine, a scorer. Out: groups in prompt order, never by arrival. State: the allocation's (position, pass rates) and the scorer's statistics.

Example:
    >>> source = RolloutSource(prompts, engine, renderer, scorer, params, per_step=8, seed=0)
    >>> groups = source.next(Progress())   # 8 groups of params.n completions
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from policyloop.algorithms.parts.filter import DropConstant
from policyloop.engine import Engine, Request, Weights
from policyloop.errors import Conflict
from policyloop.rollout.allocation import AllocationSettings, Allocator, Grade
from policyloop.rollout.cursor import Draw
from policyloop.types import Completion, Group, Progress, Prompt, SamplingParams


class PromptRenderer(Protocol):
    """What rollout needs of `models.template.Renderer`."""

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]: ...


class GroupScorer(Protocol):
    """What rollout needs of `rewards.scorer.Scorer`."""

    def score(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]: ...

    def problems(self) -> list[str]: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any]) -> None: ...


class Source(Protocol):
    """DESIGN §9 *Loop*: where a trainer's groups come from. `metrics` describes the last `next`; `wants_weights`: it samples."""

    @property
    def metrics(self) -> dict[str, float]: ...

    @property
    def wants_weights(self) -> bool: ...

    def next(self, progress: Progress) -> list[Group]: ...

    def publish(self, weights: Weights) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any]) -> None: ...


class RolloutSource:
    """Prompts -> engine -> rewards, in lockstep. Tokenising the next step's prompts overlaps with the update."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        engine: Engine,
        renderer: PromptRenderer,
        scorer: GroupScorer,
        params: SamplingParams,
        *,
        per_step: int,
        seed: int,
        dynamic: DropConstant | None = None,
        allocation: AllocationSettings | None = None,
        grade: Grade | None = None,
    ) -> None:
        self.allocator = Allocator(allocation or AllocationSettings(), prompts, seed, per_step, params.n, grade)
        self.cursor = self.allocator.picker
        self.dynamic = dynamic
        self.engine, self.renderer, self.scorer, self.params, self.per_step = engine, renderer, scorer, params, per_step
        self.metrics: dict[str, float] = {}
        self.wants_weights = True
        self._ids: dict[str, tuple[int, ...]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ahead: Future[None] = self._pool.submit(self._tokenise, self.cursor.peek(per_step))

    def next(self, progress: Progress) -> list[Group]:
        """One step's groups, sampled at the published weights and scored; with dynamic sampling, batch after batch until enough teach."""
        batches = 1 if self.dynamic is None else self.dynamic.batches
        times: dict[str, float] = {}
        groups: list[Group] = []
        kept: list[Group] = []
        counters: dict[str, float] = {}
        wanted = 0
        while batches > 0 and (not groups or len(kept) < wanted):
            batches -= 1
            fresh, counters = self._batch(times, progress)
            wanted = wanted or len(fresh)
            groups += fresh
            kept += [g for g in fresh if self.dynamic is None or any(self.dynamic(g))]
        self._ahead = self._pool.submit(self._tokenise, self.cursor.peek(self.per_step))
        generated = sum(len(c.token_ids) for g in groups for c in g.completions)
        self.metrics = {
            **counters,
            **self.allocator.metrics(),
            **({} if self.dynamic is None else sampled_away(groups, kept, wanted)),
            "tokens/generated": float(generated),
            **times,
            "time/rollout_tokens_per_s": generated / max(times["time/rollout_s"], 1e-9),
        }
        return (kept or groups)[:wanted]

    def _batch(self, times: dict[str, float], progress: Progress) -> tuple[list[Group], dict[str, float]]:
        """The next prompts, sampled and scored; what it took is added to `times`."""
        start = time.monotonic()
        self._ahead.result()
        draws, size = self.allocator.take(progress.step)
        self._tokenise(draws)
        waited = time.monotonic()
        begun = self._complete([(d, 0, size) for d in draws])
        grown = self.allocator.grow(draws, begun, self._complete)
        groups = [Group(d.uid, d.prompt, completions) for d, completions in zip(draws, grown, strict=True)]
        sampled = time.monotonic()
        scored, counters = self.scorer.score(groups)
        self.allocator.learn(scored)
        spent = {"data_wait_s": waited - start, "rollout_s": sampled - waited, "reward_s": time.monotonic() - sampled}
        for name, seconds in spent.items():
            times[f"time/{name}"] = times.get(f"time/{name}", 0.0) + seconds
        return scored, counters

    def sample(self, draws: Sequence[Draw], params: SamplingParams) -> list[Group]:
        """Unscored groups of `params.n` completions, one per draw, in order."""
        completions = self.engine.run([Request(d.uid, self._ids_of(d.prompt), params) for d in draws])
        n = params.n
        return [Group(d.uid, d.prompt, tuple(completions[i * n : (i + 1) * n])) for i, d in enumerate(draws)]

    def _complete(self, wanted: Sequence[tuple[Draw, int, int]]) -> list[tuple[Completion, ...]]:
        """Completions of each (draw, how many it has, how many more). A later wave has random numbers of its own."""
        requests = [
            Request(d.uid if not have else f"{d.uid}+{have}", self._ids_of(d.prompt), replace(self.params, n=n))
            for d, have, n in wanted
        ]
        made, position, found = self.engine.run(requests), 0, []
        for _, _, n in wanted:
            found.append(tuple(made[position : position + n]))
            position += n
        return found

    def publish(self, weights: Weights) -> None:
        """Hand the weights over; only an echo of the same version and digest makes them visible."""
        ack = self.engine.publish(weights)
        if (ack.version, ack.digest) != (weights.version, weights.digest):
            raise Conflict(f"the engine answered {ack.version} ({ack.digest[:12]}) to a publish of {weights.version}")

    def state(self) -> dict[str, Any]:
        return {"allocation": self.allocator.state(), "scorer": self.scorer.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.allocator.load(state["allocation"])
        self.scorer.load(state["scorer"])
        self._ahead = self._pool.submit(self._tokenise, self.cursor.peek(self.per_step))

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _ids_of(self, prompt: Prompt) -> tuple[int, ...]:
        if prompt.id not in self._ids:
            self._ids[prompt.id] = self.renderer.prompt_ids(prompt)
        return self._ids[prompt.id]

    def _tokenise(self, draws: Sequence[Draw]) -> None:
        for draw in draws:
            self._ids_of(draw.prompt)


def sampled_away(groups: Sequence[Group], kept: Sequence[Group], per_step: int) -> dict[str, float]:
    """What dynamic sampling changed about the prompts. Surplus groups are discarded: they would be of an older policy at the next step."""
    names = {g.uid for g in kept}
    gone = [[s.metric for s in g.scores if s.metric is not None] for g in groups if g.uid not in names]
    return {
        "dynamic/kept_frac": len(kept) / max(1, len(groups)),
        "dynamic/batches": len(groups) / max(1, per_step),
        "dynamic/all_right": float(sum(bool(m) and min(m) > 0 for m in gone)),
        "dynamic/all_wrong": float(sum(bool(m) and max(m) <= 0 for m in gone)),
        "dynamic/surplus": float(max(0, len(kept) - per_step)),
    }
