"""Floors: what the arithmetic and the memory of this machine allow, from rates measured now.

In: weights of trunk and head, tokens. Out: seconds that no program for the same step can beat: flop ÷ the measured rate of a large
matrix product, and for decoding one read of all weights per token position ÷ the measured rate of reading memory, whichever is more.

Example:
    >>> rates = measure("fp32")
    >>> rollout_s(Weights(body=106_000_000, head=28_000_000, width=4), rates, prompt_tokens=400, rows=32, new_tokens=64)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Rates:
    """flop_s: of a 2048-cube matrix product, flop per second. read_bytes_s: of summing a tensor far larger than the caches."""

    flop_s: float
    read_bytes_s: float


@dataclass(frozen=True, slots=True)
class Weights:
    """Linear weights that a token passes: `body` in the layers, `head` over the vocabulary; `width` bytes each."""

    body: int
    head: int
    width: int


def measure(precision: str, size: int = 2048, megabytes: int = 256) -> Rates:
    """This machine's rates now, with the threads torch has: medians of five."""
    a, b = (torch.randn(size, size).to(DTYPES[precision]) for _ in range(2))
    block = torch.ones(megabytes << 18)
    return Rates(2 * size**3 / _median_s(lambda: a @ b), (megabytes << 20) / _median_s(block.sum))


def rollout_s(weights: Weights, rates: Rates, *, prompt_tokens: int, rows: int, new_tokens: int) -> float:
    """Every prompt once through the trunk, then `new_tokens` positions of `rows` rows through trunk and head."""
    prefill = 2 * weights.body * prompt_tokens / rates.flop_s
    arithmetic = 2 * (weights.body + weights.head) * rows / rates.flop_s
    reading = (weights.body + weights.head) * weights.width / rates.read_bytes_s
    return prefill + new_tokens * max(arithmetic, reading)


def update_s(weights: Weights, rates: Rates, *, prompt_tokens: int, trained_tokens: int, full: bool) -> float:
    """Forward and backward, prompts once, the head on completions only. Frozen weights have no gradient of their own: 4 flop a
    weight and token instead of 6; a frozen or tied head is counted with 6 in full fine-tuning, 4 with LoRA."""
    per = 6 if full else 4
    return per * (weights.body * (prompt_tokens + trained_tokens) + weights.head * trained_tokens) / rates.flop_s


def _median_s(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
