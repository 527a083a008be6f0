"""Swapped linears: the same numbers, and a weight that can be replaced and put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from policyloop.engine.linear import fast_bfloat16, linears, pack, swap


class Special(nn.Linear):
    """A subclass keeps its own forward."""


def tree() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 33), nn.Sequential(nn.ReLU(), nn.Linear(33, 7, bias=False)), Special(7, 2))


@pytest.mark.parametrize("shape", [(1, 20), (5, 20), (2, 3, 20), (300, 20)])
def test_the_same_numbers(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    module = tree()
    want = module(x)
    swap(module)
    assert list(linears(module)) == ["0", "1.1"]
    with torch.inference_mode():
        assert (module(x) - want).abs().max() < 1e-5


def test_bfloat16() -> None:
    """Within its own rounding of the float32 result, on a chip with or without bfloat16 instructions."""
    module, x = tree(), torch.randn(9, 20)
    want = module(x)
    swap(low := tree().bfloat16())
    with torch.inference_mode():
        got = low(x.bfloat16())
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).abs().max() < 0.03
    packed = pack(torch.zeros(4, 4, dtype=torch.bfloat16))
    assert packed is not None and packed.dtype == (torch.bfloat16 if fast_bfloat16() else torch.float32)


def test_another_weight_and_back() -> None:
    module, x = tree(), torch.randn(4, 20)
    swap(module)
    first = linears(module)["0"]
    other = torch.randn(33, 20)
    with torch.inference_mode():
        before = first(x)
        first.use(other, pack(other))
        assert (first(x) - (x @ other.T + first.bias)).abs().max() < 1e-4
        first.use(first.weight, pack(first.weight))
        assert torch.equal(first(x), before)


def test_without_packing() -> None:
    """float64 is not packed; the plain product is the same thing."""
    assert pack(torch.zeros(3, 3, dtype=torch.float64)) is None
    assert pack(torch.zeros(0, 3)) is None
    module, x = tree().double(), torch.randn(4, 20, dtype=torch.float64)
    want = module(x)
    swap(module)
    assert torch.equal(module(x), want)
    other = torch.randn(33, 20, dtype=torch.float64)
    linears(module)["0"].use(other, None)
    assert not torch.allclose(module(x), want)
