"""Adaptive difficulty (GFPO, 2508.09726, Algorithm 2): how many to keep of a group, from where its mean outcome lies among all prompts seen.

In: the raw metric's mean of each group, added before it is asked about. Out: k. Few prompts are solved at all at first, so many means are
exactly 0: ranks are mid-ranks, and the worst and best possible mean are very hard and easy whatever the others say.

Example:
    >>> seen = Quantiles(); [seen.add(x) for x in (0.0, 0.0, 0.0, 1.0)]
    >>> seen.midrank(0.0)              # P(X < 0) + P(X = 0) / 2
    0.375
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from policyloop.types import Group, settings

EXACT = 10_000  # prompts kept one by one; beyond it a t-digest of 1000 centroids
BUCKETS = ("very_hard", "hard", "medium", "easy")


class Quantiles:
    """Numbers seen so far, exactly up to EXACT of them."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.digest: Any = None

    def __len__(self) -> int:
        return len(self.values) if self.digest is None else int(self.digest.n_values)

    def add(self, x: float) -> None:
        if self.digest is not None:
            self.digest.update(x)
            return
        bisect.insort(self.values, x)
        if len(self.values) > EXACT:
            from fastdigest import TDigest

            self.digest, self.values = TDigest.from_values(self.values, max_centroids=1000), []

    def midrank(self, x: float) -> float:
        if self.digest is not None:
            return (self.digest.cdf(math.nextafter(x, -math.inf)) + self.digest.cdf(math.nextafter(x, math.inf))) / 2
        return (bisect.bisect_left(self.values, x) + bisect.bisect_right(self.values, x)) / 2 / max(1, len(self.values))

    def quantile(self, q: float) -> float:
        """Linear between neighbours, as numpy's default."""
        if self.digest is not None:
            return float(self.digest.quantile(q))
        at = q * (len(self.values) - 1)
        low, high = self.values[math.floor(at)], self.values[math.ceil(at)]
        return low + (high - low) * (at - math.floor(at))

    def state(self) -> dict[str, Any]:
        return {"values": list(self.values), "digest": None if self.digest is None else self.digest.to_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.values, self.digest = [float(x) for x in state["values"]], None
        if state["digest"] is not None:
            from fastdigest import TDigest

            self.digest = TDigest.from_dict(state["digest"])


def mean_outcome(group: Group) -> float | None:
    """Mean raw metric of the scored completions (the shaped reward where there is no metric)."""
    known = [s.metric if s.metric is not None else s.value for s in group.scores]
    finite = [x for x in known if x is not None and math.isfinite(x)]
    return statistics.fmean(finite) if finite else None


@settings
class AdaptiveDifficulty:
    """k by difficulty (the paper's 8, 8, 6, 4 are for G = 16): harder prompts keep more.

    ready_after: prompts seen before quantiles count (at least 4 steps' worth); until then k_very_hard. ranks: `mid` = mid-rank against
    0.25, 0.5, 0.75; `strict` = the paper's strict comparison with the quartiles, which calls unsolved prompts easy once most are unsolved.
    low, high: the worst and best mean there can be, always very hard and easy under `mid`.
    """

    k_very_hard: int = 8
    k_hard: int = 8
    k_medium: int = 6
    k_easy: int = 4
    ready_after: int = 64
    ranks: Literal["mid", "strict"] = "mid"
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if any(self.k(bucket) < 2 for bucket in BUCKETS):
            raise ValueError("every k of difficulty is 2 or more: one completion has nothing to be compared with")

    def k(self, bucket: str) -> int:
        return int(getattr(self, f"k_{bucket}"))

    def bucket(self, group: Group) -> str:
        """Before anything was seen every prompt may be hard."""
        return "very_hard"

    def controller(self) -> Difficulty:
        return Difficulty(self)


@dataclass(frozen=True, kw_only=True)
class Judged(AdaptiveDifficulty):
    """The same with what has been seen: what the controller puts in its place for one update."""

    seen: Quantiles = field(default_factory=Quantiles, repr=False)
    ready: bool = False

    def bucket(self, group: Group) -> str:
        mean = mean_outcome(group)
        if mean is None or not self.ready:
            return "very_hard"
        if self.ranks == "strict":
            return BUCKETS[sum(mean >= self.seen.quantile(q) for q in (0.25, 0.5, 0.75))]
        if mean <= self.low + 1e-9:
            return "very_hard"
        if mean >= self.high - 1e-9:
            return "easy"
        rank = self.seen.midrank(mean)
        return BUCKETS[sum(rank >= q for q in (0.25, 0.5, 0.75))]


class Difficulty:
    """The controller: means of every group are added before any of them is judged, so that the order inside a step does not matter."""

    def __init__(self, part: AdaptiveDifficulty) -> None:
        self.part, self.seen, self.ready = part, Quantiles(), False
        self._met: Sequence[Group] = ()

    @property
    def value(self) -> Judged:
        return Judged(**vars(self.part), seen=self.seen, ready=self.ready)

    def meet(self, groups: Sequence[Group]) -> None:
        self._met = groups
        for mean in map(mean_outcome, groups):
            if mean is not None:
                self.seen.add(mean)
        self.ready = len(self.seen) >= max(self.part.ready_after, 4 * len(groups))

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Everything was learned from the groups."""

    def metrics(self) -> dict[str, float]:
        """Buckets of this step, and the quartiles once they count."""
        buckets = [self.value.bucket(g) for g in self._met]
        found = {f"gfpo/bucket_{name}": float(buckets.count(name)) for name in BUCKETS}
        if self.ready:
            found |= {f"gfpo/difficulty_q{q}": self.seen.quantile(q / 100) for q in (25, 50, 75)}
        return found

    def state(self) -> dict[str, Any]:
        return {**self.seen.state(), "ready": self.ready}

    def load(self, state: Mapping[str, Any]) -> None:
        self.seen.load(state)
        self.ready = bool(state["ready"])
