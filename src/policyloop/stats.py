"""Statistics that evaluation, gate and monitoring share: intervals, paired tests, what it takes to decide. numpy and scipy, no torch.

In: plain numbers, and for items that are not independent (several answers to one prompt, several texts of one problem) a cluster key
per item. Out: numbers and 95 % intervals. Nothing here draws without a seed.

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
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy import stats as sp

Z95 = 1.959963984540054
ALPHA = 0.05
Clusters = Sequence[Hashable] | None
Claim = Literal["worse", "not_worse"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval around an estimate."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


# --- one sample -------------------------------------------------------------------------------------------------------------


def wilson(successes: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a share; (0, 1) without data. `n` may be an effective size."""
    if n <= 0:
        return 0.0, 1.0
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def share(values: Sequence[float], clusters: Clusters = None) -> Interval:
    """Mean of 0/1 (or [0, 1]) values with a Wilson interval; with clusters, at the effective size that their correlation leaves and
    with Student's quantile for their number."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return Interval(math.nan, 0.0, 1.0)
    n = len(x) / design_effect(x, clusters)
    mean = float(x.mean())
    return Interval(mean, *wilson(mean * n, n, _quantile_for(len(x), clusters)))


def design_effect(values: Sequence[float] | NDArray[np.float64], clusters: Clusters) -> float:
    """Variance of the mean with clustering over without it, at least 1. Where all values are equal nothing can be measured: then every
    cluster counts as one item."""
    if clusters is None:
        return 1.0
    x = np.asarray(values, dtype=np.float64)
    sums, sizes = _by_cluster(x - x.mean(), clusters)
    m, plain = len(sizes), float(x.var())
    if m == len(x):
        return 1.0
    if plain < 1e-15 or m == 1:
        return len(x) / m
    return max(1.0, m / (m - 1) * float((sums**2).sum()) / (len(x) * plain))


def _quantile_for(n: int, clusters: Clusters) -> float:
    m = n if clusters is None else len(set(clusters))
    return Z95 if m in (1, n) else float(sp.t.ppf(1 - ALPHA / 2, m - 1))


def _by_cluster(x: NDArray[np.float64], clusters: Sequence[Hashable]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum and size per cluster, in order of first appearance."""
    place: dict[Hashable, int] = {}
    index = np.array([place.setdefault(c, len(place)) for c in clusters])
    return np.bincount(index, x, len(place)).astype(np.float64), np.bincount(index, minlength=len(place)).astype(np.int64)


def cluster_means(values: Sequence[float], clusters: Clusters) -> list[float]:
    """One value per cluster: what tests that need independent numbers may read."""
    if clusters is None:
        return list(values)
    sums, sizes = _by_cluster(np.asarray(values, dtype=np.float64), clusters)
    return (sums / sizes).tolist()


def cluster_bootstrap(values: Sequence[float], clusters: Clusters = None, draws: int = 4000, seed: int = 0) -> Interval:
    """Mean with a percentile interval; whole clusters are drawn where there are any. The percentiles are moved outwards as Student's t
    asks for that many clusters (Hesterberg 2015, "expanded percentile"): plain ones are too narrow for few."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) == 0:
        return Interval(math.nan, math.nan, math.nan)
    sums, sizes = _by_cluster(x, clusters if clusters is not None else range(len(x)))
    m, rng = len(sums), np.random.default_rng(seed)
    means, block = np.empty(draws), max(1, (1 << 20) // m)  # as many draws at once as fit into a few MB
    for start in range(0, draws, block):
        pick = rng.integers(0, m, (min(block, draws - start), m))
        means[start : start + block] = sums[pick].sum(1) / sizes[pick].sum(1)
    outer = math.sqrt(m / (m - 1)) * float(sp.t.ppf(1 - ALPHA / 2, m - 1)) if m > 1 else Z95
    tail = float(sp.norm.cdf(-outer))
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(x.mean()), float(low), float(high))


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean of independent numbers (one per seed) with Student's interval; one number alone says nothing of its spread."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else math.nan, -math.inf, math.inf)
    half = float(sp.t.ppf(1 - ALPHA / 2, len(x) - 1)) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return Interval(float(x.mean()), float(x.mean()) - half, float(x.mean()) + half)


def quantile(x: Sequence[float], q: float) -> float:
    return float(np.quantile(np.asarray(x, dtype=np.float64), q)) if len(x) else math.nan


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate that one of k draws is right, from c right ones of n: 1 - C(n-c, k) / C(n, k)."""
    if n - c < k:
        return 1.0
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN where one side is constant."""
    if len(x) < 3 or len(set(x)) < 2 or len(set(y)) < 2:
        return math.nan
    return float(np.asarray(sp.spearmanr(x, y))[0])


def kappa(one: Sequence[Hashable], other: Sequence[Hashable]) -> Interval:
    """Cohen's agreement beyond chance of two people (or a person and a judge) over the same items; bootstrapped over items. Where both
    always say the same one thing there is nothing to agree on: NaN."""
    if len(one) != len(other):
        raise ValueError(f"{len(one)} labels and {len(other)}")
    names = {label: i for i, label in enumerate(dict.fromkeys([*one, *other]))}
    a, b = (np.array([names[label] for label in side]) for side in (one, other))

    def of(pick: NDArray[np.int64]) -> float:
        x, y = a[pick], b[pick]
        chance = float((np.bincount(x, minlength=len(names)) * np.bincount(y, minlength=len(names))).sum()) / len(pick) ** 2
        return float("nan") if chance >= 1 else (float((x == y).mean()) - chance) / (1 - chance)

    n, rng = len(a), np.random.default_rng(0)
    if n == 0:
        return Interval(math.nan, -1.0, 1.0)
    drawn = [k for _ in range(2000) if not math.isnan(k := of(rng.integers(0, n, n)))]
    low, high = np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2]) if drawn else (-1.0, 1.0)
    return Interval(of(np.arange(n)), float(low), float(high))


# --- pairs ------------------------------------------------------------------------------------------------------------------


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p-value that discordant pairs fall either way alike (binomial, p = 1/2)."""
    n = only_a + only_b
    return 1.0 if n == 0 else float(sp.binomtest(only_a, n, 0.5).pvalue)


def clustered_mcnemar(differences: Sequence[int], clusters: Clusters = None) -> float:
    """McNemar's question for pairs in clusters, exactly: the chance of a total at least this far from 0 when the sign of every cluster's
    total is a fair coin. `differences` are -1, 0 or 1. Where every cluster is one pair this is McNemar's test itself."""
    x = np.asarray(differences, dtype=np.int64)
    totals = x if clusters is None else _by_cluster(x.astype(np.float64), clusters)[0].astype(np.int64)
    sizes = np.abs(totals[totals != 0])
    if (sizes == 1).all():
        return mcnemar(int((totals < 0).sum()), int((totals > 0).sum()))
    reach = int(sizes.sum())
    chance = np.zeros(2 * reach + 1)  # chance[reach + t]: of the total t
    chance[reach] = 1.0
    for size in sizes:
        chance = (np.roll(chance, size) + np.roll(chance, -size)) / 2  # never wraps: |t| <= reach
    far = np.abs(np.arange(-reach, reach + 1)) >= abs(int(x.sum()))
    return min(1.0, float(chance[far].sum()))


def _score(gap: float, only_a: float, only_b: float, n: float) -> float:
    """Tango's statistic (1998) of the hypothesis that B's share is A's plus `gap`; standard normal under it."""
    b = only_a + only_b - (2 * n - only_b + only_a) * gap
    only_a_share = (b + math.sqrt(b * b + 8 * n * only_a * gap * (1 - gap))) / (4 * n)  # most likely one under the hypothesis
    variance = n * (2 * only_a_share + gap * (1 - gap))
    distance = only_b - only_a - n * gap
    return distance / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, distance) if distance else 0.0


def paired_share(only_a: float, only_b: float, n: float, z: float = Z95) -> tuple[float, float]:
    """Score interval of the difference B - A of two shares of the same n items (Tango 1998). Unlike the bootstrap it knows that 20 pairs
    without a single disagreement still leave room for one. Counts may be at an effective size."""
    if n <= 0:
        return -1.0, 1.0
    middle, edge = (only_b - only_a) / n, 1 - 1e-9

    def end(wanted: float, outer: float) -> float:
        def off(gap: float) -> float:
            return _score(gap, only_a, only_b, n) - wanted

        return outer if off(outer * edge) * wanted < 0 else float(np.asarray(optimize.brentq(off, middle, outer * edge)))

    return end(z, -1.0), end(-z, 1.0)


def not_worse(only_a: float, only_b: float, n: float, margin: float) -> float:
    """One-sided p-value of "B is worse than A by `margin` or more" (Tango's score test); small = not worse. Below 0.025 exactly when the
    lower end of `paired_share` is above -margin."""
    return float(sp.norm.sf(_score(-margin, only_a, only_b, n))) if n > 0 else 1.0


def wilcoxon(difference: Sequence[float]) -> float:
    """Signed-rank p-value that paired differences are centred at 0; 1 where all are 0."""
    d = np.asarray([x for x in difference if x != 0], dtype=np.float64)
    return 1.0 if len(d) == 0 else float(np.asarray(sp.wilcoxon(d))[1])


def items_to_decide(distance: float, half_width: float, n: int, power: float = 0.8) -> int | None:
    """How many items in all, so that an interval with this half-width at n (it shrinks with sqrt(n)) clears a border `distance` away with
    that probability, if the estimate is the truth. None where the estimate lies on the border."""
    if not math.isfinite(distance) or not math.isfinite(half_width) or distance == 0:
        return None
    widths = (Z95 + float(sp.norm.ppf(power))) / Z95
    return math.ceil(n * (widths * half_width / abs(distance)) ** 2)


# --- valid at every moment --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arm:
    """What one side of a running comparison has shown: `n` independent outcomes in [0, 1] and their sum. Arms add up."""

    n: float = 0.0
    total: float = 0.0

    def __add__(self, other: Arm) -> Arm:
        return Arm(self.n + other.n, self.total + other.total)

    def and_one(self, outcome: float) -> Arm:
        return Arm(self.n + 1, self.total + min(1.0, max(0.0, outcome)))

    @property
    def mean(self) -> float:
        return self.total / self.n if self.n else math.nan


def _log_chance(arm: Arm, p: float) -> float:
    """log p^S (1-p)^(n-S)."""
    return _times_log(arm.total, p) + _times_log(arm.n - arm.total, 1 - p)


def _times_log(count: float, p: float) -> float:
    """count log p, 0 for no count: also at p = 0."""
    return 0.0 if count == 0 else count * math.log(p) if p > 0 else -math.inf


def _log_mixture(arm: Arm) -> float:
    """The same averaged over Beta(1/2, 1/2): what a bettor who knows nothing would have reached."""
    good, bad = arm.total + 0.5, arm.n - arm.total + 0.5
    return math.lgamma(good) + math.lgamma(bad) - math.lgamma(arm.n + 1) - math.log(math.pi)


def log_evidence(stable: Arm, candidate: Arm, margin: float, claim: Claim) -> float:
    """log e-value for "the candidate is worse by more than `margin`" (`worse`), or for its opposite (`not_worse`), read at any time, as
    often as one likes: if the claim is false it ever reaches log(1/alpha) with probability at most alpha.

    The betting martingale is the likelihood ratio of a beta mixture against a pair of means, the smallest one over all pairs the
    claim excludes (Robbins 1970; Howard et al. 2021, "sub-Bernoulli"). Exact for 0/1 outcomes; for others in [0, 1] it is a
    supermartingale, since x -> a^x b^(1-x) is convex. Only counts and sums enter: replicas add theirs.
    """
    if not stable.n or not candidate.n:
        return 0.0
    excluded_holds = (candidate.mean >= stable.mean - margin) == (claim == "worse")
    best = _log_chance(stable, stable.mean) + _log_chance(candidate, candidate.mean)
    if not excluded_holds:  # then the nearest excluded pair lies on the border p_candidate = p_stable - margin
        best = _border_chance(stable, candidate, margin)
    return _log_mixture(stable) + _log_mixture(candidate) - best


def _border_chance(stable: Arm, candidate: Arm, margin: float) -> float:
    """Largest log-likelihood of both arms over pairs of means exactly `margin` apart; concave along that line."""
    low, high = max(0.0, margin), min(1.0, 1.0 + margin)

    def loss(p: float) -> float:
        return -(_log_chance(stable, p) + _log_chance(candidate, min(1.0, max(0.0, p - margin))))

    if high - low < 1e-12:
        return -loss(low)
    ratio, a, b = (math.sqrt(5) - 1) / 2, low, high
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    at_c, at_d = loss(c), loss(d)
    for _ in range(40):  # golden section
        if at_c < at_d:
            b, d, at_d = d, c, at_c
            c = b - ratio * (b - a)
            at_c = loss(c)
        else:
            a, c, at_c = c, d, at_d
            d = a + ratio * (b - a)
            at_d = loss(d)
    return -min(at_c, at_d, loss(low), loss(high))


def difference_sequence(stable: Arm, candidate: Arm, alpha: float = ALPHA) -> Interval:
    """candidate - stable with an interval that holds at all times together with probability 1 - alpha (each end alpha / 2)."""
    if not stable.n or not candidate.n:
        return Interval(math.nan, -1.0, 1.0)
    value, bound, edge = candidate.mean - stable.mean, math.log(2 / alpha), 1 - 1e-9

    def end(claim: Claim, outer: float) -> float:
        def off(gap: float) -> float:
            return log_evidence(stable, candidate, -gap, claim) - bound

        return outer if off(outer * edge) < 0 else float(np.asarray(optimize.brentq(off, value, outer * edge, xtol=1e-6)))

    return Interval(value, end("not_worse", -1.0), end("worse", 1.0))
