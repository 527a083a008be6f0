"""The KV against plain float64 attention, through random sequences of joining, stepping and leaving, with and without a window."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from policyloop.engine.kv import GROW, Cache, Prefill, _close_gaps

HEADS, KV, D = 6, 2, 8


def plain(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """(heads, D) of the last position of one row: q (heads, D), k and v (kv, T, D); the definition, in float64."""
    k, v = (x.double().repeat_interleave(HEADS // KV, 0) for x in (k, v))
    t = k.shape[1]
    scores = (k @ q.double()[:, :, None])[..., 0] * 0.3
    if window is not None:
        scores[:, : max(0, t - window)] = -torch.inf
    return (scores.softmax(-1)[:, None] @ v)[:, 0]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape)


class Twin:
    """A cache and, beside it, every row's whole keys and values."""

    def __init__(self, window: int | None) -> None:
        self.cache, self.window = Cache(), window
        self.rows: list[tuple[Tensor, Tensor]] = []

    def join(self, lengths: list[int], samples: list[int]) -> None:
        fresh = Prefill(lengths)
        total = sum(lengths)
        q, k, v = draw(1, HEADS, total, D), draw(1, KV, total, D), draw(1, KV, total, D)
        out = fresh.attend(0, q, k, v, 0.3, self.window)
        start = 0
        for length, count in zip(lengths, samples, strict=True):
            part = slice(start, start + length)
            for t in range(length):
                upto = slice(start, start + t + 1)
                want = plain(q[0, :, start + t], k[0, :, upto], v[0, :, upto], self.window)
                assert (out[0, :, start + t] - want).abs().max() < 1e-5
            self.rows += [(k[0, :, part], v[0, :, part])] * count
            start += length
        self.cache.add(fresh, samples)

    def step(self) -> None:
        n = len(self.rows)
        assert self.cache.begin_step() == [k.shape[1] for k, _ in self.rows]
        q, k, v = draw(n, HEADS, 1, D), draw(n, KV, 1, D), draw(n, KV, 1, D)
        out = self.cache.attend(0, q, k, v, 0.3, self.window)
        self.cache.end_step()
        self.rows = [(torch.cat([a, k[i]], 1), torch.cat([b, v[i]], 1)) for i, (a, b) in enumerate(self.rows)]
        for i, (keys, values) in enumerate(self.rows):
            assert (out[i, :, 0] - plain(q[i, :, 0], keys, values, self.window)).abs().max() < 1e-5

    def leave(self, stay: list[int]) -> None:
        order = self.cache.keep(stay)
        assert sorted(order) == sorted(stay)
        self.rows = [self.rows[i] for i in order]


@pytest.mark.parametrize("window", [None, 1, 3, 10, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_every_row_attends_its_prompt_and_itself(window: int | None, seed: int) -> None:
    torch.manual_seed(seed)
    chance = random.Random(seed)
    twin = Twin(window)
    twin.join([5, 1, 9], [2, 2, 2])
    for _ in range(30):
        twin.step()
        if chance.random() < 0.3:
            twin.join([chance.randint(1, 12) for _ in range(2)], [chance.randint(1, 4) for _ in range(2)])
        if chance.random() < 0.5:
            stay = [i for i in range(len(twin.rows)) if chance.random() < 0.8]
            twin.leave(stay or [0])


def test_space_grows_and_is_used_again() -> None:
    torch.manual_seed(0)
    twin = Twin(None)
    twin.join([3, 40], [1, 2])
    for _ in range(GROW + 2):
        twin.step()
    assert twin.cache.private.keys[0].shape == (3, KV, 2 * GROW, D)
    twin.leave([0])
    twin.join([2], [2])
    twin.step()
    assert twin.cache.private.keys[0].shape == (3, KV, 2 * GROW, D)
    assert twin.cache.prompts == [3, 2]


def test_numbers_of_a_broken_row_stay_with_it() -> None:
    """A slot whose last owner held NaN is clean for the next one."""
    twin = Twin(None)
    twin.join([4, 6], [2, 1])
    for x in twin.cache.private.tensors():
        x[2] = torch.nan
    for x in twin.cache.shared.tensors():
        x[1] = torch.nan
    twin.leave([0, 1])
    twin.join([3, 6], [2, 1])
    for _ in range(3):
        twin.step()


def test_the_last_ones_fill_the_gaps() -> None:
    moves: list[tuple[int, int]] = []
    assert _close_gaps(6, {0, 2, 5}, lambda a, b: moves.append((a, b))) == [0, 5, 2]
    assert moves == [(5, 1)]
    assert _close_gaps(4, {0, 1}, lambda a, b: moves.append((a, b))) == [0, 1]
    assert _close_gaps(3, {2}, lambda a, b: moves.append((a, b))) == [2]
    assert moves == [(5, 1), (2, 0)]
