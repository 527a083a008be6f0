"""Floors from their definition: flop ÷ rate, bytes ÷ rate, whichever is more."""

from __future__ import annotations

import pytest

from policyloop.bench.floor import Rates, Weights, measure, rollout_s, update_s

WEIGHTS = Weights(body=100, head=50, width=4)


def test_a_rollout_bound_by_arithmetic() -> None:
    rates = Rates(flop_s=1000.0, read_bytes_s=1e9)
    # prefill 2*100*10/1000 = 2 s; each of 3 positions 2*150*4/1000 = 1.2 s
    assert rollout_s(WEIGHTS, rates, prompt_tokens=10, rows=4, new_tokens=3) == pytest.approx(2 + 3 * 1.2)


def test_a_rollout_bound_by_reading_the_weights() -> None:
    rates = Rates(flop_s=1e9, read_bytes_s=100.0)
    # each position reads 150 weights of 4 bytes: 6 s
    assert rollout_s(WEIGHTS, rates, prompt_tokens=0, rows=4, new_tokens=3) == pytest.approx(18)


def test_an_update_costs_six_flop_a_weight_when_weights_have_gradients_and_four_when_not() -> None:
    rates = Rates(flop_s=1000.0, read_bytes_s=1.0)
    lora, full = (update_s(WEIGHTS, rates, prompt_tokens=2, trained_tokens=8, full=f) for f in (False, True))
    assert lora == pytest.approx(4 * (100 * 10 + 50 * 8) / 1000)
    assert full == pytest.approx(1.5 * lora)


def test_rates_are_measured_and_of_this_world() -> None:
    rates = measure("fp32", size=256, megabytes=8)
    assert 1e8 < rates.flop_s < 1e15
    assert 1e8 < rates.read_bytes_s < 1e13
