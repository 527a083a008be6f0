"""The scripted engine keeps the protocol: versions, refusals, options."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from policyloop.engine import ENGINES, EngineSpec, Request, Weights
from policyloop.engine.scripted import ScriptedEngine
from policyloop.errors import BadInput, StaleVersion, Unavailable
from policyloop.types import SamplingParams

ONE = Request("u", (1, 2), SamplingParams(max_new_tokens=5))
NEW = Weights(version="run#1", kind="lora", tensors={"a": torch.ones(2)}, base_digest="b", digest="d")


def test_samples_take_the_answers_in_turn() -> None:
    engine = ENGINES["scripted"](EngineSpec("", "v", options={"answers": [[7], [8, 9]]}))
    done = engine.run([replace(ONE, params=replace(ONE.params, n=3)), ONE])
    assert [c.token_ids for c in done] == [(7,), (8, 9), (7,), (7,)]
    assert {c.policy_version for c in done} == {"v"}
    assert done[1].text == " 8 9"


def test_publish() -> None:
    engine = ScriptedEngine([[7]], base="b")
    assert engine.publish(NEW).digest == "d"
    assert engine.run([ONE])[0].policy_version == engine.status().version == "run#1"
    with pytest.raises(StaleVersion):
        engine.publish(replace(NEW, version="run#2", base_digest="c"))
    with pytest.raises(ValueError, match="run#3"):
        engine.publish(replace(NEW, version="run#3", tensors={"a": torch.tensor(math.nan)}))
    assert engine.status().version == "run#1"


def test_refusals() -> None:
    engine = ScriptedEngine([[7]])
    for bad in (replace(ONE, prompt_token_ids=()), replace(ONE, params=replace(ONE.params, n=0))):
        with pytest.raises(BadInput):
            engine.run([bad])
    engine.close()
    with pytest.raises(Unavailable):
        engine.run([ONE])
    with pytest.raises(BadInput, match="answers"):
        ScriptedEngine.load(EngineSpec("", "v"))
