"""The scorer: groups in, the same groups with scores out, plus what happened (failures, shares, correlations with length).

Order (ALGORITHMS §22): raw parts -> raw metric kept aside -> compose -> range control -> length terms. All rewards run concurrently.

Example:
    >>> scorer = Scorer.from_settings(RewardsSettings(), grade=task.grade, prompts=prompts, max_new_tokens=64)
    >>> groups, counters = scorer.score(groups)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from policyloop.errors import BadInput
from policyloop.rewards import Context, Grade, Reward, RewardsSettings, Row, math_worker
from policyloop.rewards.compose import Array, Ranger, apply_token_efficiency, combine
from policyloop.rewards.running import run
from policyloop.rewards.verifier import CorrectReward
from policyloop.types import Completion, Group, Prompt, Score

Column = list[float | None]


class Scorer:
    """Rewards, their weights and one way to put them together."""

    def __init__(self, settings: RewardsSettings, context: Context) -> None:
        self.settings, self.context = settings, context
        self.rewards: list[Reward] = [term.create(context) for term in settings.terms]
        self.names = [r.name for r in self.rewards]
        if twice := [n for n in self.names if self.names.count(n) > 1]:
            raise BadInput(f"two rewards are called {twice[0]}", "one name each", "rewards (field name)")
        if settings.metric not in (None, *self.names):
            raise BadInput(f"rewards.metric = {settings.metric}", f"one of {', '.join(self.names)}, or null", "rewards.metric")
        self.weights = np.array([term.weight for term in settings.terms], dtype=np.float64)
        verdicts = [r for r in self.rewards if isinstance(r, CorrectReward)]
        self.verdict: Reward = verdicts[0] if verdicts else CorrectReward("verdict", context.grade)
        self.ranger = Ranger(settings.range_control)

    @staticmethod
    def from_settings(settings: RewardsSettings, *, grade: Grade, prompts: Sequence[Prompt], max_new_tokens: int) -> Scorer:
        """Check against the data before anything runs. Errors: BadInput, for example for a column that a function needs and no row has."""
        return Scorer(settings, Context(grade, columns_of(prompts), max_new_tokens))

    def score(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        """`ascore` from plain code, also inside a running event loop (a notebook)."""
        return run(self.ascore(groups))

    async def ascore(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        rows = [Row(g.prompt, c) for g in groups for c in g.completions]
        if not rows:
            return list(groups), {}
        group_N = np.array([i for i, g in enumerate(groups) for _ in g.completions], dtype=np.int64)
        length_N = np.array([r.completion.length for r in rows], dtype=np.int64)
        stopped = math_worker.killed
        verdicts, columns = await self._raw(rows)
        failed_N = np.array([any(column[n] is None for column in columns) for n in range(len(rows))])
        parts_NK = np.array([[math.nan if v is None else v for v in column] for column in columns], dtype=np.float64).T
        metric_N = self._metric(verdicts, parts_NK)
        composed_N = combine(np.where(failed_N[:, None], np.nan, parts_NK), self.weights, group_N, self.settings)
        value_N = self._shaped(composed_N, metric_N, length_N)
        scores = [self._score(n, value_N, parts_NK, metric_N, columns) for n in range(len(rows))]
        counters = self._counters(parts_NK, composed_N, value_N, length_N, columns)
        return regrouped(groups, scores), {**counters, "reward/grader_stopped": float(math_worker.killed - stopped)}

    async def _raw(self, rows: Sequence[Row]) -> tuple[Column, list[Column]]:
        """The task's verdicts, and one column per reward; all at once, the verdicts once."""
        extra = [] if self.verdict in self.rewards else [self.verdict]
        found = await asyncio.gather(*(r(rows) for r in (*self.rewards, *extra)), return_exceptions=True)
        for problem in found:
            if isinstance(problem, BaseException):
                raise problem
        columns = [[v if v is None or not math.isinf(v) else None for v in c] for c in found if not isinstance(c, BaseException)]
        return columns[-1] if extra else columns[self.rewards.index(self.verdict)], columns[: len(self.rewards)]

    def _metric(self, verdicts: Column, parts: Array) -> Array:
        """(N,) raw outcomes, before any shaping; NaN where there is none. Never a mixture of verdicts and rewards."""
        if self.settings.metric is not None:
            return parts[:, self.names.index(self.settings.metric)]
        if all(v is None for v in verdicts):
            return parts[:, 0]
        return np.array([math.nan if v is None else v for v in verdicts], dtype=np.float64)

    def _shaped(self, composed: Array, metric: Array, length: Any) -> Array:
        value = self.ranger(composed)
        term = self.settings.token_efficiency
        return value if term is None else apply_token_efficiency(value, metric, length, self.context.max_new_tokens, term)

    def _score(self, n: int, value: Array, parts: Array, metric: Array, columns: Sequence[Column]) -> Score:
        unscored = [name for name, column in zip(self.names, columns, strict=True) if column[n] is None]
        return Score(
            None if math.isnan(value[n]) else float(value[n]),
            {name: float(parts[n, k]) for k, name in enumerate(self.names)},
            None if math.isnan(metric[n]) else float(metric[n]),
            {"unscored": unscored} if unscored else {},
        )

    def _counters(self, parts: Array, composed: Array, value: Array, length: Any, columns: Sequence[Column]) -> dict[str, float]:
        """Of this call: raw mean and range of every part, its share of the reward's variance, its correlation with length, failures."""
        found: dict[str, float] = {}
        if not np.isnan(composed).all():
            found["reward/unshaped_mean"] = float(np.nanmean(composed))
        control = self.settings.range_control
        if control is not None and control.mode == "clip":
            found["reward/out_of_range_frac"] = float(((composed < control.low) | (composed > control.high)).mean())
        for k, reward in enumerate(self.rewards):
            found.update(part_counters(reward.name, self.weights[k], parts[:, k], value, length))
            found[f"reward/unscored/{reward.name}"] = float(sum(v is None for v in columns[k]))
            for kind, count in getattr(reward, "counters", {}).items():
                found[f"reward/{kind}/{reward.name}"] = float(count)
        return found

    def problems(self) -> list[str]:
        """The first problem of each reward that had one, in words."""
        return [p for r in self.rewards if (p := getattr(r, "first_problem", None))]

    def check(self, prompt: Prompt, completion: Completion) -> Score:
        """One completion on its own."""
        return self.score([Group("check", prompt, (completion,))])[0][0].scores[0]

    def state(self) -> dict[str, Any]:
        return {"range": self.ranger.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.ranger.load(state["range"])


def columns_of(prompts: Iterable[Prompt]) -> frozenset[str]:
    """What a reward may ask for: the columns of the data, and the gold (`answer`, `target`) where there is one."""
    columns: set[str] = set()
    for prompt in prompts:
        columns.update(prompt.meta)
        if prompt.target is not None:
            columns.update(("answer", "target"))
    return frozenset(columns)


def regrouped(groups: Sequence[Group], scores: Sequence[Score]) -> list[Group]:
    """The groups with their scores, in the order of their completions."""
    left = iter(scores)
    return [Group(g.uid, g.prompt, g.completions, tuple(next(left) for _ in g.completions), g.keep) for g in groups]


def part_counters(name: str, weight: float, part: Array, value: Array, length: Any) -> dict[str, float]:
    """One raw part over the rows where it and the reward are known."""
    known = ~np.isnan(part) & ~np.isnan(value)
    if not known.any():
        return {}
    x, y, n = part[known], value[known], length[known].astype(np.float64)
    found = {
        f"reward/part/{name}": float(x.mean()),
        f"reward/part_min/{name}": float(x.min()),
        f"reward/part_max/{name}": float(x.max()),
    }
    if y.std() > 1e-6:
        found[f"reward/share/{name}"] = float(np.cov(weight * x, y)[0, 1] / y.var(ddof=1))
    if x.std() > 1e-6 and n.std() > 1e-6:
        found[f"reward/length_corr/{name}"] = float(np.corrcoef(x, n)[0, 1])
    return found
