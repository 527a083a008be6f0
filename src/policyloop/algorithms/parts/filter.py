"""Filters: one group in, one keep mark per completion out. A filter marks, it never drops: who divides by what is decided later.

Example (GFPO, shortest 2 of 4 by length):  lengths [30, 12, 45, 20] -> keep [False, True, False, True]
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence

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
    target_accuracy, or `pkg.mod:function`.
    """

    k: int = 4
    metric: str = "shortest"
    skip_truncated: bool = False

    def __call__(self, group: Group) -> tuple[bool, ...]:
        metric = metric_of(self.metric)
        ranked = []
        for i, (completion, score) in enumerate(zip(group.completions, group.scores, strict=True)):
            value = metric(completion, score)
            valid = score.value is not None and math.isfinite(value)
            if valid and not (self.skip_truncated and completion.finish_reason == "length"):
                ranked.append((-value, completion.length, i))
        kept = {i for _, _, i in sorted(ranked)[: self.k]}
        return tuple(i in kept and len(kept) >= 2 for i in range(len(group.completions)))

    def follows_reward(self) -> bool:
        """Whether the metric is a function of the reward, so that retained rewards tend to be equal (ALGORITHMS §13.4)."""
        return self.metric in ("token_efficiency", "target_accuracy")


@settings
class DropConstant:
    """DAPO eq. 11: keep a group iff its RAW metric (before any shaping) varies by more than `threshold` (standard deviation)."""

    threshold: float = 1e-6

    def __call__(self, group: Group) -> tuple[bool, ...]:
        values = [s.metric for s in group.scores if s.metric is not None]
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
