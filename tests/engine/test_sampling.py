"""The sampler against its definition: the float64 CDF over a grid of u, for every filter; filters against plain Python loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from policyloop.engine.sampling import Truncation, check, inverse_cdf, sample, truncate
from policyloop.errors import BadInput
from policyloop.types import SamplingParams

BASE = SamplingParams(max_new_tokens=1)
FILTERS = {
    "none": BASE,
    "cold": replace(BASE, temperature=0.3),
    "hot": replace(BASE, temperature=2.5),
    "top_k": replace(BASE, top_k=7),
    "top_k-1": replace(BASE, top_k=1),
    "top_p": replace(BASE, top_p=0.9),
    "top_p-small": replace(BASE, top_p=1e-6),
    "top_p-wide": replace(BASE, top_p=0.9999, temperature=3.0),
    "min_p": replace(BASE, min_p=0.05),
    "all": replace(BASE, temperature=1.3, top_k=40, top_p=0.8, min_p=0.02),
}


def kept_by_definition(logits: np.ndarray, p: SamplingParams) -> list[int]:
    """Word by word, in float64: top-k, then top-p on what is left, then min-p; ties at the edge stay."""
    z = logits.astype(np.float64) / p.temperature
    w = np.exp(z - z.max())
    stay = list(range(len(w)))
    if p.top_k:
        edge = sorted((w[i] for i in stay), reverse=True)[min(p.top_k, len(stay)) - 1]
        stay = [i for i in stay if w[i] >= edge]
    if p.top_p < 1:
        total, mass, edge = sum(w[i] for i in stay), 0.0, 0.0
        for i in sorted(stay, key=lambda i: -w[i]):
            mass, edge = mass + w[i], w[i]
            if mass >= p.top_p * total:
                break
        stay = [i for i in stay if w[i] >= edge]
    return [i for i in stay if w[i] >= p.min_p * w.max()]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("vocabulary", [3, 256, 1000, 5000])
def test_the_index_of_the_float64_cdf(name: str, vocabulary: int) -> None:
    p = FILTERS[name]
    rng = np.random.default_rng(vocabulary)
    logits = (rng.standard_normal(vocabulary) * 3).astype(np.float32)
    grid = (np.arange(400) + 0.5) / 400
    token, logprob = sample(torch.from_numpy(logits).expand(400, -1), torch.from_numpy(grid), Truncation.of([p] * 400))
    kept = kept_by_definition(logits, p)
    z = logits.astype(np.float64) / p.temperature
    w = np.zeros(vocabulary)
    w[kept] = np.exp(z[kept] - z.max())
    cdf = w.cumsum()
    for u, got in zip(grid, token.tolist(), strict=True):
        below = cdf[got - 1] if got else 0.0
        assert got in kept
        assert below - 1e-6 * cdf[-1] <= u * cdf[-1] <= cdf[got] + 1e-6 * cdf[-1]  # float32 exponentials, nothing coarser
    full = z - z.max() - math.log(np.exp(z - z.max()).sum())  # over all words, whatever the filter
    np.testing.assert_allclose(logprob.numpy(), full[token.numpy()], atol=2e-6)


@pytest.mark.parametrize("vocabulary", [1, 255, 256, 257, 151_936])
def test_two_levels_are_one_cumulative_sum(vocabulary: int) -> None:
    """Exactly the index of the one-level float64 CDF of the same float32 numbers, words without mass included."""
    torch.manual_seed(vocabulary)
    e = torch.rand(8, vocabulary).pow(4) * (torch.rand(8, vocabulary) > 0.5)
    e[:, torch.randint(vocabulary, (1,))] = 1.0
    for u in (0.0, 1e-12, 0.1, 0.5, 0.77777, 0.999999, 1 - 2**-53):
        uniform = torch.full((8,), u, dtype=torch.float64)
        cdf = e.double().cumsum(-1)
        want = torch.searchsorted(cdf, u * cdf[:, -1:], right=True)[:, 0].clamp_max(vocabulary - 1)
        got = inverse_cdf(e, uniform)
        assert (e.gather(1, got[:, None]) > 0).all()
        apart = (cdf.gather(1, want[:, None]) - cdf.gather(1, got[:, None])).abs() / cdf[:, -1:]
        assert (apart < 1e-12).all() or u > 1 - 1e-15
        assert u > 1 - 1e-15 or torch.equal(got, want)


def test_every_word_of_a_large_vocabulary_can_be_drawn() -> None:
    """A float32 cumulative sum gives thousands of words no width; aiming at the middle of each word's interval must hit it."""
    v = 152_000
    e = torch.ones(1, v)
    aim = (torch.arange(v, dtype=torch.float64) + 0.5) / v
    hit = torch.cat([inverse_cdf(e.expand(len(part), -1), part) for part in aim.split(64)[::600]])
    assert torch.equal(hit, torch.cat(torch.arange(v).split(64)[::600]))


def test_frequencies() -> None:
    p = torch.tensor([0.5, 0.3, 0.2, 0.0])
    u = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    token, _ = sample(p.log().expand(20_000, -1), u, Truncation.of([BASE] * 20_000))
    share = torch.bincount(token, minlength=4) / 20_000
    assert (share - p).abs().max() < 0.012  # 3.4 standard errors
    assert share[3] == 0


def test_each_row_has_its_own_settings() -> None:
    """One mixed batch = every row alone, bit for bit."""
    rows = [*FILTERS.values(), replace(BASE, temperature=0.0), replace(BASE, temperature=0.0, top_k=3)]
    torch.manual_seed(1)
    logits = torch.randn(len(rows), 3000) * 2
    u = torch.rand(len(rows), dtype=torch.float64)
    token, logprob = sample(logits, u, Truncation.of(rows))
    for i, p in enumerate(rows):
        t, lp = sample(logits[i : i + 1], u[i : i + 1], Truncation.of([p]))
        assert (token[i], logprob[i]) == (t[0], lp[0])


def test_greedy_is_the_likeliest_word_at_temperature_1() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    token, logprob = sample(logits, torch.tensor([0.999], dtype=torch.float64), Truncation.of([replace(BASE, temperature=0.0)]))
    assert token.tolist() == [1]
    assert logprob.item() == pytest.approx(2 - math.log(1 + math.e**2 + math.e), abs=1e-6)


def test_ties_at_the_edge_stay() -> None:
    e = torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.1]])

    def kept(**settings: float) -> list[int]:
        return torch.nonzero(truncate(e, Truncation.of([replace(BASE, **settings)]))[0])[:, 0].tolist()  # type: ignore[arg-type]

    assert kept(top_k=2) == [0, 1, 2, 3]
    assert kept(top_p=0.5) == [0, 1, 2, 3]
    assert kept(top_p=0.38) == [0]
    assert kept(min_p=0.5) == [0, 1, 2, 3]
    assert kept(top_k=99) == [0, 1, 2, 3, 4]


def test_a_flat_distribution_needs_the_long_list() -> None:
    """Nucleus of 0.9 of 10,000 equal-but-ordered words: beyond every short list."""
    e = torch.linspace(1, 2, 10_000)[torch.randperm(10_000, generator=torch.Generator().manual_seed(0))][None]
    kept = truncate(e, Truncation.of([replace(BASE, top_p=0.9)]))[0]
    order = e[0].sort(descending=True).values.double()
    want = int((order.cumsum(0) < 0.9 * order.sum()).sum()) + 1
    assert abs(int((kept > 0).sum()) - want) <= 1 + int((e[0] == order[want - 1]).sum())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_give_a_nan_log_prob(bad: float) -> None:
    logits: Tensor = torch.zeros(1, 500)
    logits[0, 300] = bad
    token, logprob = sample(logits, torch.tensor([0.5], dtype=torch.float64), Truncation.of([BASE]))
    assert 0 <= int(token) < 500
    assert math.isnan(logprob)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"n": 0},
        {"max_new_tokens": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": -0.1},
        {"stop": ("",)},
    ],
)
def test_settings_without_meaning_are_refused_by_name(wrong: dict[str, object]) -> None:
    check(BASE)
    with pytest.raises(BadInput, match=next(iter(wrong))):
        check(replace(BASE, **wrong))  # type: ignore[arg-type]
