"""Stateless random numbers: golden values from plain Python integers, uniform, independent over every argument."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from policyloop.engine.randoms import row_keys, uniforms

M = (1 << 64) - 1


def mix(x: int) -> int:
    """splitmix64's finaliser, in Python's own integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M
    return x ^ (x >> 31)


def u(seed: int, uid: str, sample: int, position: int) -> float:
    base = int.from_bytes(hashlib.blake2b(f"{seed}/{uid}".encode(), digest_size=8).digest(), "little")
    key = mix((base + 0x9E3779B97F4A7C15 * (sample + 1)) & M)
    return (mix((key + 0x9E3779B97F4A7C15 * (position + 1)) & M) >> 11) / 2**53


def test_the_finaliser_is_splitmix64() -> None:
    """First output of the reference generator with state 0 (published in its C code's tests)."""
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("seed", [0, 1, 2**63, -5])
def test_the_same_numbers_as_python_integers(seed: int) -> None:
    for uid in ("q/0/0", "问题/3/1", ""):
        got = uniforms(row_keys(seed, uid, [0, 1, 7]), [0, 5, 100000])
        assert got.tolist() == [u(seed, uid, 0, 0), u(seed, uid, 1, 5), u(seed, uid, 7, 100000)]


def test_golden() -> None:
    """Written down once: a seed in an old run must mean the same for ever."""
    got = uniforms(row_keys(42, "a/0/0", [0, 1]), [0, 1])
    assert got.tolist() == [0.5501188863759706, 0.14408762210043258]


def test_uniform_and_independent() -> None:
    keys = row_keys(3, "p/0/0", range(200))
    table = np.stack([uniforms(keys, np.full(200, t)) for t in range(200)])  # (positions, samples)
    assert ((table >= 0) & (table < 1)).all()
    assert stats.kstest(table.ravel(), "uniform").pvalue > 1e-3
    cells, _, _ = np.histogram2d(table[:-1].ravel(), table[1:].ravel(), bins=10)  # neighbours in position
    assert stats.chisquare(cells.ravel()).pvalue > 1e-3
    cells, _, _ = np.histogram2d(table[:, :-1].ravel(), table[:, 1:].ravel(), bins=10)  # neighbours in sample
    assert stats.chisquare(cells.ravel()).pvalue > 1e-3
    seeds = np.array([[uniforms(row_keys(s, f"p{i}", [0]), [0])[0] for s in range(60)] for i in range(60)])
    assert stats.kstest(seeds.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(seeds)[np.triu_indices(60, 1)]).max() < 0.6
    assert len(np.unique(table)) == table.size


def test_rows_do_not_depend_on_their_company() -> None:
    together = uniforms(row_keys(1, "x", [0, 1, 2]), [4, 9, 2])
    assert together[1] == uniforms(row_keys(1, "x", [1]), [9])[0]
