"""Statistics against definitions and tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from policyloop import stats
from policyloop.stats import (
    Z95,
    cluster_bootstrap,
    cluster_means,
    clustered_mcnemar,
    correlation,
    design_effect,
    items_to_decide,
    mcnemar,
    not_worse,
    paired_share,
    pass_at_k,
    quantile,
    share,
    wilcoxon,
    wilson,
)

# --- one sample -------------------------------------------------------------------------------------------------------------


def test_wilson_by_hand() -> None:
    """8 of 10 at z = 1.96: centre 0.7168, half 0.2265 (Wilson 1927)."""
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4) and high == pytest.approx(0.9433, abs=1e-4)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)


def test_wilson_is_the_score_test_turned_around() -> None:
    """At an end p of the interval the score statistic (8 - 10 p) / sqrt(10 p (1 - p)) is exactly z."""
    for end in wilson(8, 10):
        assert abs(8 - 10 * end) / math.sqrt(10 * end * (1 - end)) == pytest.approx(Z95)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(4, 2, 1, 0.5), (4, 2, 2, 1 - 1 / 6), (4, 0, 4, 0.0), (4, 1, 4, 1.0), (8, 3, 2, 1 - 10 / 28)]
)
def test_pass_at_k(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


def test_pass_at_k_is_the_mean_over_all_draws() -> None:
    answers = [True, False, False, True, False, False]
    for k in range(1, 7):
        draws = list(itertools.combinations(answers, k))
        assert pass_at_k(6, 2, k) == pytest.approx(sum(any(d) for d in draws) / len(draws))


def test_clusters_widen_an_interval() -> None:
    """Ten clusters of ten equal answers carry ten answers' worth of evidence, not a hundred: 10/9 · (10 · 5²) / (100 · 1/4)."""
    values = [1.0] * 50 + [0.0] * 50
    clusters = [i // 10 for i in range(100)]
    assert design_effect(np.array(values), clusters) == pytest.approx(10 / 9 * 10)
    alone, grouped = share(values), share(values, clusters)
    assert grouped.high - grouped.low > 2.5 * (alone.high - alone.low)
    assert (grouped.low, grouped.high) == pytest.approx(wilson(4.5, 9, 2.262157), abs=1e-5)  # t with 9 degrees of freedom
    assert design_effect(np.array(values), list(range(100))) == 1.0 and share(values, list(range(100))) == alone


def test_equal_values_count_once_per_cluster() -> None:
    """96 right answers of 12 prompts: nothing tells how alike the eight answers of a prompt are, so they are 12 pieces of evidence."""
    found = share([1.0] * 96, [i // 8 for i in range(96)])
    assert found.low == pytest.approx(wilson(12, 12, 2.200985)[0], abs=1e-5)


def test_no_values_no_knowledge() -> None:
    assert math.isnan(share([]).value) and (share([]).low, share([]).high) == (0.0, 1.0)
    assert math.isnan(cluster_bootstrap([]).low) and math.isnan(quantile([], 0.5))


def test_bootstrap_covers_and_is_seeded() -> None:
    d = [1.0] * 30 + [0.0] * 60 + [-1.0] * 10
    a, b = cluster_bootstrap(d, seed=3), cluster_bootstrap(d, seed=3)
    assert a == b and a.value == pytest.approx(0.2) and a.low < 0.2 < a.high
    assert a.high - a.low == pytest.approx(2 * 1.984 * np.std(d, ddof=1) / 10, rel=0.1)  # t with 99 degrees of freedom
    assert cluster_bootstrap([0.0] * 10).low == 0.0


def test_bootstrap_draws_whole_clusters() -> None:
    """A hundred values in ten equal blocks: the interval is that of ten values."""
    blocks = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    spread = [b for b in blocks for _ in range(10)]
    grouped = cluster_bootstrap(spread, [i // 10 for i in range(100)], seed=1)
    ten = cluster_bootstrap(blocks, seed=1)
    assert (grouped.low, grouped.high) == pytest.approx((ten.low, ten.high))
    assert grouped.high - grouped.low > 2.5 * (lambda x: x.high - x.low)(cluster_bootstrap(spread, seed=1))


def test_bootstrap_of_few_clusters_is_as_wide_as_student_says() -> None:
    """Six values: a plain percentile interval is 30 % narrower than Student's; this one must come close to it."""
    x = [0.1, 0.4, 0.35, 0.8, 0.55, 0.2]
    student = 2 * 2.570582 * np.std(x, ddof=1) / math.sqrt(6)
    found = cluster_bootstrap(x, draws=20_000)
    assert found.high - found.low == pytest.approx(student, rel=0.12)


def test_cluster_means() -> None:
    assert cluster_means([1.0, 3.0, 5.0], ["a", "a", "b"]) == [2.0, 5.0]
    assert cluster_means([1.0, 3.0], None) == [1.0, 3.0]


def test_spearman_is_about_ranks() -> None:
    """1 - 6 Σd² / (n (n² - 1)) without ties: d = (0, 1, 1, 0), n = 4."""
    assert correlation([1, 2, 3, 4], [10, 200, 30, 4000]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert math.isnan(correlation([1, 1, 1], [0, 1, 0])) and math.isnan(correlation([1, 2], [0, 1]))


# --- pairs ------------------------------------------------------------------------------------------------------------------


def test_exact_mcnemar() -> None:
    """2 against 10 discordant: 2 · P(X <= 2 | 12, 1/2) = 2 · (1 + 12 + 66) / 4096."""
    assert mcnemar(2, 10) == pytest.approx(2 * 79 / 4096)
    assert mcnemar(0, 0) == 1.0 and mcnemar(5, 5) == 1.0


def test_clustered_mcnemar_of_single_pairs_is_mcnemar() -> None:
    assert clustered_mcnemar([-1] * 2 + [1] * 10 + [0] * 30) == pytest.approx(2 * 79 / 4096)
    assert clustered_mcnemar([]) == 1.0 and clustered_mcnemar([0, 0], ["a", "a"]) == 1.0


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_clustered_mcnemar_counts_every_flip_of_the_signs(totals: list[int]) -> None:
    differences = [int(np.sign(t)) for t in totals for _ in range(abs(t) or 1)]
    clusters = [i for i, t in enumerate(totals) for _ in range(abs(t) or 1)]
    flips = itertools.product([-1, 1], repeat=len(totals))
    far = [abs(sum(s * t for s, t in zip(signs, totals, strict=True))) >= abs(sum(totals)) for signs in flips]
    assert clustered_mcnemar(differences, clusters) == pytest.approx(sum(far) / len(far))


def test_ten_like_answers_of_one_prompt_are_one_piece_of_evidence() -> None:
    assert mcnemar(0, 30) < 1e-8
    assert clustered_mcnemar([1] * 30, [i // 10 for i in range(30)]) == pytest.approx(2 / 2**3)


def constrained(only_a: int, only_b: int, n: int, gap: float) -> float:
    """Tango's statistic from its definition: the likelihood maximised numerically under p_b = p_a + gap."""
    low, high = max(1e-12, -gap + 1e-12), (1 - gap) / 2 - 1e-12

    def minus_log_likelihood(p: float) -> float:
        return -(only_a * math.log(p) + only_b * math.log(p + gap) + (n - only_a - only_b) * math.log(1 - 2 * p - gap))

    p = optimize.minimize_scalar(minus_log_likelihood, bounds=(low, high), method="bounded", options={"xatol": 1e-12}).x
    return (only_b - only_a - n * gap) / math.sqrt(n * (2 * p + gap - gap * gap))


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(2, 12, 50), (12, 2, 50), (9, 60, 200), (3, 3, 40)])
def test_paired_share_is_the_score_test_turned_around(only_a: int, only_b: int, n: int) -> None:
    low, high = paired_share(only_a, only_b, n)
    assert constrained(only_a, only_b, n, low) == pytest.approx(Z95, abs=1e-3)
    assert constrained(only_a, only_b, n, high) == pytest.approx(-Z95, abs=1e-3)


def test_no_disagreement_still_leaves_room() -> None:
    """Without a discordant pair the statistic is n·gap² / (gap (1 - gap)) = z², so gap = z² / (n + z²); 0.161 for 20 pairs."""
    expected = Z95**2 / (20 + Z95**2)
    assert paired_share(0, 0, 20) == pytest.approx((-expected, expected))
    assert cluster_bootstrap([0.0] * 20).low == 0.0  # which is why the bootstrap alone does not decide
    assert paired_share(0, 0, 0) == (-1.0, 1.0) and paired_share(0, 5, 5)[1] == 1.0


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(3, 5, 200), (12, 5, 200), (0, 0, 60), (8, 8, 100), (1, 0, 300)])
@pytest.mark.parametrize("margin", [0.02, 0.05, 0.1])
def test_not_worse_agrees_with_the_interval(only_a: int, only_b: int, n: int, margin: float) -> None:
    assert (not_worse(only_a, only_b, n, margin) < 0.025) == (paired_share(only_a, only_b, n)[0] > -margin)


def test_wilcoxon_of_nothing_and_of_a_clear_shift() -> None:
    assert wilcoxon([0.0, 0.0]) == 1.0
    assert wilcoxon([-3.0, -2.0, -4.0, -1.0, -5.0, -2.5, -3.5, -1.5, -4.5, -6.0]) == pytest.approx(2 / 2**10)


def test_items_to_decide() -> None:
    """An interval of ±0.1 around 0.05 from 100 items: half the time four times as many are enough; (1.96 + 0.8416)² / 1.96² more for 80 %."""
    assert items_to_decide(0.05, 0.1, 100, power=0.5) == 400
    assert items_to_decide(-0.05, 0.1, 100) == math.ceil(400 * (1 + 0.8416212 / Z95) ** 2)
    assert items_to_decide(0.0, 0.1, 100) is None and items_to_decide(math.nan, 0.1, 100) is None


def test_the_promised_power_is_reached() -> None:
    """Draw experiments of the promised size from a true difference: about 80 % of their intervals exclude 0."""
    rng, p = np.random.default_rng(0), [0.10, 0.72, 0.18]  # only A, alike, only B: +0.08, variance 0.28 - 0.08²
    half = Z95 * math.sqrt((0.28 - 0.08**2) / 100)
    n = items_to_decide(0.08, half, 100)
    assert n is not None
    draws = rng.multinomial(n, p, 2000)
    difference = (draws[:, 2] - draws[:, 0]) / n
    spread = np.sqrt(((draws[:, 2] + draws[:, 0]) / n - difference**2) / n)
    assert np.mean(difference - Z95 * spread > 0) == pytest.approx(0.8, abs=0.03)


# --- valid at every moment --------------------------------------------------------------------------------------------------


def test_evidence_is_the_likelihood_ratio_of_the_definition() -> None:
    """By numerical integration of the beta(1/2, 1/2) mixture and a grid over the excluded means."""
    stable, candidate, margin = stats.Arm(20, 18), stats.Arm(12, 5), 0.1

    def mixture(arm: stats.Arm) -> float:
        t = (np.arange(200_000) + 0.5) / 200_000 * np.pi / 2  # p = sin² t turns the arcsine density into a constant one
        p = np.sin(t) ** 2
        return float(np.mean(p**arm.total * (1 - p) ** (arm.n - arm.total)))

    p = np.linspace(margin, 1, 20_001)
    excluded = p**18 * (1 - p) ** 2 * (p - margin) ** 5 * (1 - (p - margin)) ** 7
    expected = np.log(mixture(stable) * mixture(candidate) / excluded.max())
    assert stats.log_evidence(stable, candidate, margin, "worse") == pytest.approx(expected, abs=1e-3)


def test_no_evidence_without_data_and_little_where_the_excluded_side_fits_best() -> None:
    assert stats.log_evidence(stats.Arm(), stats.Arm(5, 5), 0.0, "worse") == 0
    assert stats.log_evidence(stats.Arm(50, 40), stats.Arm(50, 45), 0.0, "worse") < 0


def test_equal_arms_are_rarely_told_apart_however_often_one_looks() -> None:
    rng, crossed = np.random.default_rng(0), 0
    for _ in range(150):
        a = b = stats.Arm()
        for _ in range(60):
            a, b = a + stats.Arm(5, float(rng.binomial(5, 0.7))), b + stats.Arm(5, float(rng.binomial(5, 0.7)))
            if stats.log_evidence(a, b, 0.0, "worse") > np.log(20):
                crossed += 1
                break
    assert crossed <= 13  # at most 5 % of 150 expected; 14 or more has probability 0.02


def test_the_interval_at_all_times_holds_the_estimate_and_shrinks() -> None:
    narrow = stats.difference_sequence(stats.Arm(2000, 1800), stats.Arm(2000, 1690))
    wide = stats.difference_sequence(stats.Arm(20, 18), stats.Arm(20, 17))
    assert wide.low < narrow.low < -0.055 < narrow.high < wide.high and narrow.high < 0
    assert narrow.value == pytest.approx(-0.055)
    assert stats.difference_sequence(stats.Arm(), stats.Arm(3, 3)).low == -1.0
