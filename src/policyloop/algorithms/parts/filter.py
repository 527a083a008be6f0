"""Filters: one group in, one keep mark per completion out. A filter marks, it never drops: who divides by what is decided later.

Example (GFPO, shortest 2 of 4 by length):  lengths [30, 12, 45, 20] -> keep [False, True, False, True]
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from policyloop.algorithms.parts.controller import Controller
from policyloop.algorithms.parts.difficulty import AdaptiveDifficulty
from policyloop.types import Completion, Group, Score, settings

Metric = Callable[[Completion, Score], float]


def _shortest(completion: Completion, score: Score) -> float:
    return -float(completion.length)


def _token_efficiency(completion: Completion, score: Score) -> float:
    return math.nan if score.value is None else score.value / max(1, completion.length)


def _target_accuracy(completion: Completion, score: Score) -> float:
    return math.nan if score.metric is None else score.metric


METRICS: dict[str, Metric] = {
    "shortest": _shortest,
    "length": _shortest,
    "token_efficiency": _token_efficiency,
    "target_accuracy": _target_accuracy,
}


def metric_of(name: str) -> Metric:
    """A row of METRICS, or a user's `pkg.mod:function` of (completion, score)."""
    if name in METRICS:
        return METRICS[name]
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@settings
class TopK:
    """GFPO (2508.09726, Algorithm 1): keep the k completions of a group with the largest metric.

    Ties: shorter first, then the lower index. Unscored completions are excluded before ranking, with `skip_truncated` cut-off ones too.
    k_eff = min(k, valid); fewer than 2 retained give no gradient. metric: shortest (alias length), token_efficiency (reward / length),
    target_accuracy, or `pkg.mod:function`. shift_min: token_efficiency counts the reward from the group's worst, so that among wrong
    answers (negative rewards) long ones no longer rank first. difficulty: k by how hard the prompt is, instead of `k` (Algorithm 2).
    """

    k: int = 4
    metric: str = "shortest"
    skip_truncated: bool = False
    shift_min: bool = False
    difficulty: AdaptiveDifficulty | None = None

    def __call__(self, group: Group) -> tuple[bool, ...]:
        metric, floor = metric_of(self.metric), self._floor(group)
        k = self.k if self.difficulty is None else self.difficulty.k(self.difficulty.bucket(group))
        ranked = []
        for i, (completion, score) in enumerate(zip(group.completions, group.scores, strict=True)):
            value = metric(completion, score if not floor or score.value is None else replace(score, value=score.value - floor))
            valid = score.value is not None and math.isfinite(score.value) and math.isfinite(value)
            if valid and not (self.skip_truncated and completion.finish_reason == "length"):
                ranked.append((-value, completion.length, i))
        kept = {i for _, _, i in sorted(ranked)[:k]}
        return tuple(i in kept and len(kept) >= 2 for i in range(len(group.completions)))

    def _floor(self, group: Group) -> float:
        values = [s.value for s in group.scores if s.value is not None and math.isfinite(s.value)]
        return min(values, default=0.0) if self.shift_min else 0.0

    def controllers(self) -> dict[str, Controller]:
        return {} if self.difficulty is None else {"difficulty": self.difficulty.controller()}

    def follows_reward(self) -> bool:
        """Whether the metric is a function of the reward, so that retained rewards tend to be equal (ALGORITHMS §13.4)."""
        return self.metric in ("token_efficiency", "target_accuracy")


@settings
class DropConstant:
    """DAPO eq. 11: keep a group iff its RAW metric (before any shaping) varies by more than `threshold` (standard deviation;
    of the reward where a task has no metric).

    batches: while too few groups of a step are kept, up to this many batches are sampled to fill it up (dynamic sampling); 1 = none more.
    """

    threshold: float = 1e-6
    batches: int = 1

    def __call__(self, group: Group) -> tuple[bool, ...]:
        values = [s.metric for s in group.scores if s.metric is not None] or [
            s.value for s in group.scores if s.value is not None
        ]
        mean = sum(values) / max(1, len(values))
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values)))
        return (spread > self.threshold,) * len(group.completions)


FILTERS: dict[str, type] = {"top_k": TopK, "drop_constant": DropConstant}
Filter = TopK | DropConstant


def mark(groups: Sequence[Group], part: Callable[[Group], tuple[bool, ...]] | None) -> list[Group]:
    """Each group with its keep marks (all True without a filter)."""
    if part is None:
        return list(groups)
    return [Group(g.uid, g.prompt, g.completions, g.scores, part(g)) for g in groups]
