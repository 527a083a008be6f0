"""The engine against a plain float32 Hugging Face forward: same log-probs, same greedy tokens, in every family, ragged, grouped, late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from policyloop.engine import Request
from policyloop.engine.builtin import BuiltinEngine
from policyloop.types import Completion, SamplingParams

torch.set_num_threads(1)
SMALL = dict(
    vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2
)
IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=256)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", dict(tie_word_embeddings=True, attention_bias=True)),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", dict(head_dim=24)),
    "mistral-window": ("mistral", dict(sliding_window=5)),
    "gemma3-window": (
        "gemma3_text",
        dict(sliding_window=4, head_dim=16, layer_types=["sliding_attention", "full_attention"] * 2, num_hidden_layers=4),
    ),
    "phi3": ("phi3", {}),
    "smollm3": ("smollm3", {}),
    "olmo2": ("olmo2", {}),
    "granite": ("granite", dict(logits_scaling=3.0, attention_multiplier=0.3, residual_multiplier=0.5, embedding_multiplier=2.0)),
    "cohere": ("cohere", dict(logit_scale=0.3)),
    "gemma2": ("gemma2", dict(head_dim=16, sliding_window=4, final_logit_softcapping=5.0, attn_logit_softcapping=2.0)),
    "gpt_oss": ("gpt_oss", dict(head_dim=16, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)),
    "lfm2": ("lfm2", dict(layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False)),
}
NOT_SHARED = {"gemma2", "gpt_oss", "lfm2"}  # soft caps, sinks, convolutions
PROMPTS = [(5, 6, 7, 8, 9, 10, 11), (12, 13, 14), (15,), (20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)]


class Words:
    """The least a renderer is: token i reads `i `."""

    stop_ids: tuple[int, ...] = ()

    def decode(self, ids: Any) -> str:
        return "".join(f"{i} " for i in ids)

    def stream(self) -> Any:
        return WordStream()


class WordStream:
    def push(self, ids: Any) -> str:
        return Words().decode(ids)

    def finish(self) -> str:
        return ""


def model_of(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    kind, more = FAMILIES[family]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**SMALL, **IDS, **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()
    for name, p in model.named_parameters():  # sharper than the usual start, so that a wrong mask shows
        p.data.mul_(4.0 if "proj" in name and p.dim() == 2 else 1.0)
    return model


def logprobs_of(
    model: PreTrainedModel, prompt: tuple[int, ...], tokens: tuple[int, ...], temperature: float = 1.0
) -> torch.Tensor:
    """(T, V) log-softmax(logits / temperature) of the whole sequence at once, no cache."""
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *tokens]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1)


def assert_same(model: PreTrainedModel, done: list[Completion], temperature: float, tolerance: float = 1e-4) -> None:
    for c in done:
        want = logprobs_of(model, c.prompt_token_ids, c.token_ids, temperature)
        got = torch.tensor(c.logprobs)
        assert (want.gather(1, torch.tensor(c.token_ids)[:, None])[:, 0] - got).abs().max() < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_is_the_plain_forward(family: str) -> None:
    plain = model_of(family)
    engine = BuiltinEngine(model_of(family), Words(), "v#0", max_rows=6)
    assert engine.shares == (family not in NOT_SHARED)
    # groups of unequal size and length; six rows at once, so that some join while others are half done
    greedy = [
        Request(f"g{i}", p, SamplingParams(max_new_tokens=6 + 3 * i, temperature=0, n=1 + i % 2)) for i, p in enumerate(PROMPTS)
    ]
    done = engine.run(greedy)
    for c in done:
        assert c.token_ids == tuple(logprobs_of(plain, c.prompt_token_ids, c.token_ids).argmax(-1).tolist())
    assert_same(plain, done, 1.0)
    drawn = engine.run(
        [Request(f"s{i}", p, SamplingParams(max_new_tokens=9, temperature=0.7, n=3)) for i, p in enumerate(PROMPTS)]
    )
    assert [len(c.token_ids) for c in drawn] == [9] * 12
    assert_same(plain, drawn, 0.7)


@pytest.mark.parametrize("family", ["llama", "mistral-window", "lfm2"])
def test_score_is_the_plain_forward(family: str) -> None:
    engine = BuiltinEngine(model_of(family), Words(), "v#0")
    want = logprobs_of(model_of(family), PROMPTS[0], (40, 41, 42)).gather(1, torch.tensor([[40], [41], [42]]))[:, 0]
    assert torch.tensor(engine.score(PROMPTS[0], (40, 41, 42))).sub(want).abs().max() < 1e-4
    assert engine.score(PROMPTS[0], ()) == []


@pytest.mark.parametrize("family", ["llama", "gemma3-window", "lfm2"])
def test_bfloat16_is_near_its_own_forward(family: str) -> None:
    """Two correct bfloat16 implementations differ; the engine stays within what the plain one differs from float32."""
    low = model_of(family, dtype=torch.bfloat16)
    high = model_of(family)
    engine = BuiltinEngine(model_of(family, dtype=torch.bfloat16), Words(), "v#0")
    assert engine.shares == (family != "lfm2")
    done = engine.run([Request(f"s{i}", p, SamplingParams(max_new_tokens=8, n=2)) for i, p in enumerate(PROMPTS)])
    ours, theirs = [], []
    for c in done:
        at = torch.tensor(c.token_ids)[:, None]
        exact = logprobs_of(high, c.prompt_token_ids, c.token_ids).gather(1, at)[:, 0]
        ours.append((torch.tensor(c.logprobs) - exact).abs().mean())
        theirs.append((logprobs_of(low, c.prompt_token_ids, c.token_ids).gather(1, at)[:, 0] - exact).abs().mean())
    assert torch.stack(ours).mean() < 1.5 * torch.stack(theirs).mean() + 0.01
