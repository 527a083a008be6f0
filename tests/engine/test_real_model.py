"""SmolLM2-135M-Instruct in float32 (slow): greedy text of the engine = Hugging Face generate, real tokenizer in streams."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from policyloop.engine import EngineSpec, Request
from policyloop.engine.builtin import BuiltinEngine
from policyloop.models.catalogue import resolve
from policyloop.types import Message, Prompt, SamplingParams

pytestmark = pytest.mark.slow
QUESTIONS = (
    "What is 7 + 5? Reply with only the final answer.",
    "Name three colours.",
    "Translate to Chinese: unit price. Then add an emoji.",
)


def test_greedy_text_is_generates() -> None:
    torch.set_num_threads(1)
    path = resolve("smollm2-135m-instruct")
    engine = BuiltinEngine.load(EngineSpec(str(path), "smol@1"))
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    prompts = [engine.renderer.prompt_ids(Prompt.make("t", [Message("user", q)])) for q in QUESTIONS]  # type: ignore[attr-defined]
    requests = [Request(f"q{i}", p, SamplingParams(max_new_tokens=24, temperature=0)) for i, p in enumerate(prompts)]
    done = engine.run(requests)
    for c in done:
        ids = torch.tensor([c.prompt_token_ids])
        stops = list(engine.renderer.stop_ids)
        with torch.inference_mode():
            out = plain.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, eos_token_id=stops, pad_token_id=0
            )
        assert c.token_ids == tuple(out[0, ids.shape[1] :].tolist())

    async def streamed(request: Request) -> str:
        return "".join([d.text async for d in engine.stream(request)])

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*map(streamed, requests)))

    assert asyncio.run(all_of_them()) == [c.text for c in done]
    engine.close()
