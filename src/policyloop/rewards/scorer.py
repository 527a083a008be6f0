"""The scorer: groups in, the same groups with scores out, plus what happened (failures, shares, correlations with length).

Order (ALGORITHMS §22): raw parts -> raw metric kept aside -> compose -> range control -> length terms. All rewards run concurrently.

Example:
    >>> scorer = Scorer.from_settings(RewardsSettings(), grade=task.grade, prompts=prompts, max_new_tokens=64)
    >>> groups, counters = scorer.score(groups)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from policyloop.errors import BadInput
from policyloop.rewards import Context, Grade, Reward, RewardsSettings, Row
from policyloop.rewards.compose import Array, Ranger, apply_token_efficiency, combine
from policyloop.types import Completion, Group, Prompt, Score

R = TypeVar("R")


class Scorer:
    """Rewards, their weights and one way to put them together."""

    def __init__(self, settings: RewardsSettings, context: Context) -> None:
        self.settings, self.context = settings, context
        self.rewards: list[Reward] = [term.create(context) for term in settings.terms]
        names = [r.name for r in self.rewards]
        if twice := [n for n in names if names.count(n) > 1]:
            raise BadInput(f"two rewards are called {twice[0]}", "one name each", "rewards (field name)")
        self.weights = np.array([term.weight for term in settings.terms], dtype=np.float64)
        self.ranger = Ranger(settings.range_control)

    @staticmethod
    def from_settings(settings: RewardsSettings, *, grade: Grade, prompts: Sequence[Prompt], max_new_tokens: int) -> Scorer:
        """Check against the data before anything runs: columns are those of the first prompts."""
        columns = frozenset(key for p in prompts[:100] for key in p.meta)
        return Scorer(settings, Context(grade, columns, max_new_tokens))

    def score(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        """`ascore` from plain code, also inside a running event loop (a notebook)."""
        return run(self.ascore(groups))

    async def ascore(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        rows = [Row(g.prompt, c) for g in groups for c in g.completions]
        group_N = np.array([i for i, g in enumerate(groups) for _ in g.completions], dtype=np.int64)
        columns = await asyncio.gather(*(reward(rows) for reward in self.rewards))
        failed_N = np.array([any(column[n] is None for column in columns) for n in range(len(rows))], dtype=bool)
        parts_NK = np.array([[np.nan if v is None else v for v in column] for column in columns], dtype=np.float64).T
        parts_NK = parts_NK.reshape(len(rows), len(self.rewards))
        metric_N = np.array([self._metric(row, parts) for row, parts in zip(rows, parts_NK, strict=True)], dtype=np.float64)
        value_N = self._values(parts_NK, metric_N, group_N, rows, failed_N)
        scores = [self._score(n, value_N, parts_NK, metric_N, columns) for n in range(len(rows))]
        return list(self._regroup(groups, scores)), self._counters(parts_NK, value_N, rows)

    def _metric(self, row: Row, parts: Array) -> float:
        """The raw outcome: the task's verdict, or the first reward where the task has none."""
        verdict = self.context.grade(row.prompt, row.completion)
        return float(parts[0]) if verdict is None else float(verdict)

    def _values(self, parts: Array, metric: Array, group: Any, rows: Sequence[Row], failed: Any) -> Array:
        value = self.ranger(np.where(failed, np.nan, combine(np.where(failed[:, None], np.nan, parts), self.weights, group, self.settings)))
        if self.settings.token_efficiency is None:
            return value
        lengths = np.array([r.completion.length for r in rows], dtype=np.int64)
        return apply_token_efficiency(value, metric, lengths, self.context.max_new_tokens, self.settings.token_efficiency)

    def _score(self, n: int, value: Array, parts: Array, metric: Array, columns: Sequence[Sequence[float | None]]) -> Score:
        names = [r.name for r in self.rewards]
        unscored = [name for name, column in zip(names, columns, strict=True) if column[n] is None]
        return Score(
            None if math.isnan(value[n]) else float(value[n]),
            {name: float(parts[n, k]) for k, name in enumerate(names)},
            None if math.isnan(metric[n]) else float(metric[n]),
            {"unscored": unscored} if unscored else {},
        )

    def _regroup(self, groups: Sequence[Group], scores: Sequence[Score]) -> Sequence[Group]:
        out, position = [], 0
        for g in groups:
            size = len(g.completions)
            out.append(Group(g.uid, g.prompt, g.completions, tuple(scores[position : position + size]), g.keep))
            position += size
        return out

    def _counters(self, parts: Array, value: Array, rows: Sequence[Row]) -> dict[str, float]:
        """Raw mean, weighted share of the reward's variance and correlation with length of every part; failures since the start."""
        found: dict[str, float] = {}
        lengths = np.array([r.completion.length for r in rows], dtype=np.float64)
        for k, reward in enumerate(self.rewards):
            known = ~np.isnan(parts[:, k]) & ~np.isnan(value)
            if known.any():
                found[f"reward/part/{reward.name}"] = float(parts[known, k].mean())
            if known.sum() > 1 and value[known].var() > 1e-12:
                share = np.cov(self.weights[k] * parts[known, k], value[known])[0, 1] / value[known].var(ddof=1)
                found[f"reward/share/{reward.name}"] = float(share)
            if known.sum() > 1 and parts[known, k].std() > 1e-12 and lengths[known].std() > 1e-12:
                found[f"reward/length_corr/{reward.name}"] = float(np.corrcoef(parts[known, k], lengths[known])[0, 1])
            for kind, count in getattr(reward, "counters", {}).items():
                found[f"reward/{kind}/{reward.name}"] = float(count)
        return found

    def problems(self) -> list[str]:
        """The first problem of each reward that had one, in words."""
        return [p for r in self.rewards if (p := getattr(r, "first_problem", None))]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        """One completion on its own (previews, `reward try`)."""
        return self.score([Group("check", prompt, (completion,))])[0][0].scores[0]

    def state(self) -> dict[str, Any]:
        return {"range": self.ranger.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.ranger.load(state["range"])


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run to the end from plain code; inside a running loop, in a thread with a loop of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
