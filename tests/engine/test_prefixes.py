"""The prefix cache: nothing is computed twice, nothing is said differently, and other weights find it empty."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from policyloop.engine import EngineSpec, Request, Weights
from policyloop.engine.builtin import BuiltinEngine
from policyloop.engine.kv import Head, Prefill
from policyloop.engine.prefixes import Prefixes
from policyloop.models.policy import digest
from policyloop.models.tiny import make_tiny
from policyloop.types import SamplingParams

SYSTEM = tuple(4 + i * 7 % 16 for i in range(40))
DRAW = SamplingParams(max_new_tokens=10, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> BuiltinEngine:
    return BuiltinEngine.load(EngineSpec(str(make_tiny(tmp_path_factory.mktemp("tiny"))), "run#0"))


def streamed(engine: BuiltinEngine, request: Request) -> tuple[int, ...]:
    async def go() -> list[int]:
        return [i async for delta in engine.stream(request) for i in delta.token_ids]

    return tuple(asyncio.run(go()))


def test_answers_behind_a_shared_beginning_are_those_without_a_cache(engine: BuiltinEngine) -> None:
    found = engine.prefixes.found
    requests = [Request("q", (*SYSTEM, 5 + i, 14), replace(DRAW, temperature=t)) for i in range(6) for t in (0.0, 1.0)]
    whole = [c.token_ids for c in engine.run(requests)]
    assert engine.prefixes.found == found  # lockstep computes every prompt: equal requests, equal bits
    assert [streamed(engine, r) for r in requests] == whole
    assert engine.prefixes.found - found == 10 * 40 + 41  # the same prompt again: all but its last token


def test_other_weights_find_it_empty(engine: BuiltinEngine) -> None:
    request = Request("q", (*SYSTEM, 9), DRAW)
    streamed(engine, request)
    tensors = {name: t + 0.1 for name, t in engine.copy.parameters.items()}
    engine.publish(Weights(version="run#1", kind="full", tensors=tensors, base_digest=engine.base, digest=digest(tensors)))
    found = engine.prefixes.found
    assert streamed(engine, request) == engine.run([request])[0].token_ids
    assert engine.prefixes.found == found


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("done", [1, 6, 9])
def test_a_prompt_in_two_parts_is_the_prompt(window: int | None, done: int) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 10, 8, generator=g) for heads in (4, 2, 2))
    at, seen = torch.arange(10)[:, None], torch.arange(10)
    looks = (seen <= at) & (at - seen < (window or 99))
    weights = (q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.3).masked_fill(~looks, -torch.inf).softmax(-1)
    whole = weights @ v.repeat_interleave(2, 1)  # by definition
    other = [torch.randn(1, heads, 3, 8, generator=g) for heads in (4, 2, 2)]  # a second prompt in the same row, without a head
    state = Prefill([10, 3], [Head(done, {0: k[:, :, :done]}, {0: v[:, :, :done]}), None])
    fed = [torch.cat([x[:, :, done:], y], 2) for x, y in zip((q, k, v), other, strict=True)]
    out = state.attend(0, *fed, 0.3, window)
    torch.testing.assert_close(out[:, :, : 10 - done], whole[:, :, done:])
    assert torch.equal(state.prompt(0)[0][0], k) and torch.equal(state.prompt(1)[1][0], other[2])


def kept(prefixes: Prefixes, *prompts: tuple[int, ...]) -> None:
    for ids in prompts:
        state = Prefill([len(ids)])
        state.keys, state.values = {0: torch.zeros(1, 1, len(ids), 1)}, {0: torch.zeros(1, 1, len(ids), 1)}
        prefixes.keep([ids], state)


def length(prefixes: Prefixes, ids: tuple[int, ...]) -> int:
    head = prefixes.find(ids)
    return 0 if head is None else head.length


def test_what_is_kept() -> None:
    a, b = tuple(range(100, 130)), tuple(range(200, 230))
    prefixes = Prefixes(70)
    kept(prefixes, a, b, (1, 2, 3))
    assert (length(prefixes, (*a, 7)), length(prefixes, a), length(prefixes, (1, 2, 3, 4))) == (30, 29, 0)
    kept(prefixes, (*a, 7, 8))  # a conversation goes on: the longer one takes the place
    assert length(prefixes, (*a, 7, 8, 9)) == 32
    length(prefixes, b)
    kept(prefixes, tuple(range(300, 320)))  # no room: the least used one leaves
    assert (length(prefixes, (*a, 7)), length(prefixes, (*b, 7))) == (0, 30)
    prefixes.clear()
    assert length(prefixes, (*b, 7)) == 0
    none = Prefixes(0)
    kept(none, a)
    assert length(none, (*a, 7)) == 0


def test_the_option_switches_it_off(tmp_path: Path) -> None:
    engine = BuiltinEngine.load(EngineSpec(str(make_tiny(tmp_path)), "run#0", options={"prefix_tokens": 0}))
    for _ in range(2):
        streamed(engine, Request("q", SYSTEM, DRAW))
    assert engine.prefixes.found == 0
