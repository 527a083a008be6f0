"""Statistics against definitions and tables."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policyloop.stats import design_effect, items_to_decide, mcnemar, paired_bootstrap, pass_at_k, share, wilcoxon, wilson


def test_wilson_by_hand() -> None:
    """8 of 10 at z = 1.96: centre 0.7168, half 0.2265 (Wilson 1927)."""
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-4) and high == pytest.approx(0.9433, abs=1e-4)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)
    assert wilson(0, 0) == (0.0, 1.0)


def test_exact_mcnemar() -> None:
    """2 against 10 discordant: 2 · P(X <= 2 | 12, 1/2) = 2 · (1 + 12 + 66) / 4096."""
    assert mcnemar(2, 10) == pytest.approx(2 * 79 / 4096)
    assert mcnemar(0, 0) == 1.0 and mcnemar(5, 5) == 1.0


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(4, 2, 1, 0.5), (4, 2, 2, 1 - 1 / 6), (4, 0, 4, 0.0), (4, 1, 4, 1.0), (8, 3, 2, 1 - 10 / 28)]
)
def test_pass_at_k(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected)


def test_clusters_widen_an_interval() -> None:
    """Ten clusters of ten equal answers carry ten answers' worth of evidence, not a hundred."""
    values = [1.0] * 50 + [0.0] * 50
    clusters = [i // 10 for i in range(100)]
    assert design_effect(np.array(values), clusters) == pytest.approx(100 / 9 * (99 / 100), rel=0.02)
    alone, grouped = share(values), share(values, clusters)
    assert grouped.high - grouped.low > 2.5 * (alone.high - alone.low)
    assert design_effect(np.array(values), list(range(100))) == 1.0


def test_paired_bootstrap_covers_and_is_seeded() -> None:
    d = [1.0] * 30 + [0.0] * 60 + [-1.0] * 10
    a, b = paired_bootstrap(d, seed=3), paired_bootstrap(d, seed=3)
    assert a == b and a.value == pytest.approx(0.2) and a.low < 0.2 < a.high
    assert a.high - a.low == pytest.approx(2 * 1.96 * math.sqrt(np.var(d) / 100), rel=0.1)
    assert paired_bootstrap([0.0] * 10).low == 0.0


def test_wilcoxon_of_nothing_and_of_a_clear_shift() -> None:
    assert wilcoxon([0.0, 0.0]) == 1.0
    assert wilcoxon([-3.0, -2.0, -4.0, -1.0, -5.0, -2.5, -3.5, -1.5, -4.5, -6.0]) == pytest.approx(2 / 2**10)


def test_items_to_decide() -> None:
    """An interval of ±0.1 around 0.05 from 100 items excludes 0 at four times as many."""
    assert items_to_decide(0.05, 0.1, 100) == 400
    assert items_to_decide(0.0, 0.1, 100) is None
