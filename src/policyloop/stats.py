"""Statistics that evaluation, gate and monitoring share: intervals, paired tests, what it takes to decide. numpy and scipy, no torch.

Example:
    >>> wilson(8, 10)
    (0.490..., 0.943...)
    >>> mcnemar(only_a=2, only_b=10)
    0.0385...
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats as sp

Z95 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval around an estimate."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share; (0, 1) without data. `n` may be an effective size."""
    if n <= 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def share(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """Mean of 0/1 (or [0, 1]) values with a Wilson interval; with clusters, at the effective size that their correlation leaves."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return Interval(math.nan, 0.0, 1.0)
    n = len(x) / design_effect(x, clusters)
    mean = float(x.mean())
    return Interval(mean, *wilson(mean * n, n))


def design_effect(x: NDArray[np.float64], clusters: Sequence[Hashable] | None) -> float:
    """Variance of the mean with clustering over without it, at least 1."""
    if clusters is None or len(set(clusters)) in (0, 1, len(x)):
        return 1.0
    plain = x.var(ddof=1) / len(x)
    if plain < 1e-15:
        return 1.0
    sums, sizes = _by_cluster(x - x.mean(), clusters)
    m = len(sizes)
    clustered = m / (m - 1) * float((sums**2).sum()) / len(x) ** 2
    return max(1.0, clustered / float(plain))


def _by_cluster(x: NDArray[np.float64], clusters: Sequence[Hashable]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum and size per cluster, in order of first appearance."""
    place: dict[Hashable, int] = {}
    index = np.array([place.setdefault(c, len(place)) for c in clusters])
    return np.bincount(index, x, len(place)).astype(np.float64), np.bincount(index, minlength=len(place)).astype(np.int64)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that one of k draws is right, from c right ones of n: 1 - C(n-c, k) / C(n, k)."""
    if n - c < k:
        return 1.0
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value that discordant pairs fall either way alike (binomial, p = 1/2)."""
    n = only_a + only_b
    return 1.0 if n == 0 else float(sp.binomtest(only_a, n, 0.5).pvalue)


def paired_bootstrap(
    difference: Sequence[float], clusters: Sequence[Hashable] | None = None, draws: int = 5000, seed: int = 0
) -> Interval:
    """Mean of paired differences with a percentile interval; whole clusters are drawn where there are any."""
    d = np.asarray(difference, dtype=np.float64)
    if len(d) == 0:
        return Interval(math.nan, math.nan, math.nan)
    sums, sizes = _by_cluster(d, clusters if clusters is not None else list(range(len(d))))
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(sums), (draws, len(sums)))
    means = sums[picks].sum(1) / sizes[picks].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(d.mean()), float(low), float(high))


def wilcoxon(difference: Sequence[float]) -> float:
    """Signed-rank p-value that paired differences are centred at 0; 1 where all are 0."""
    d = np.asarray([x for x in difference if x != 0], dtype=np.float64)
    return 1.0 if len(d) == 0 else float(np.asarray(sp.wilcoxon(d))[1])


def items_to_decide(mean: float, half_width: float, n: int) -> int | None:
    """How many items in all until an interval of this width, shrinking with sqrt(n), excludes 0; None where the mean is 0."""
    if mean == 0 or not math.isfinite(mean):
        return None
    return math.ceil(n * (half_width / abs(mean)) ** 2)


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN where one side is constant."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan
    return float(np.asarray(sp.spearmanr(x, y))[0])


def quantile(x: Sequence[float], q: float) -> float:
    return float(np.quantile(np.asarray(x, dtype=np.float64), q)) if len(x) else math.nan
