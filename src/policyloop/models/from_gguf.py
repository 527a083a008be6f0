"""A GGUF file of the Llama or Qwen family to an ordinary Hugging Face folder: weights dequantised, tokenizer, chat template, stop ids.

GGUF stores the rows of Llama's q and k with the two halves of each rotary pair interleaved; they are put back here. Architectures are
rows of `FAMILIES`, cuts before a byte-level BPE rows of `CUTS`: `export.to_gguf` writes by the same two tables. (transformers reads GGUF as
well, in three passes that take three times as long, and leaves out the cut between digits.)

Example: `convert(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), Path("out"))` -> out/{config.json, model.safetensors, tokenizer.json}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from policyloop.errors import BadInput

CONTROL, USER_DEFINED = 3, 4  # GGUF's types of added tokens: special ones, and others
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}  # Qwen 3 alone
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
FAMILIES: dict[str, tuple[Any, str]] = {
    "llama": (LlamaConfig, "LlamaForCausalLM"),
    "qwen2": (Qwen2Config, "Qwen2ForCausalLM"),
    "qwen3": (Qwen3Config, "Qwen3ForCausalLM"),
}


def _words(digits: str) -> tuple[pre_tokenizers.PreTokenizer, ...]:
    """The expression of Llama 3 and Qwen, which differ in how many digits stay together."""
    cut = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return (
        pre_tokenizers.Split(Regex(cut), "isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )


# how the text is cut before BPE, by GGUF's name for it
CUTS: dict[str, tuple[pre_tokenizers.PreTokenizer, ...]] = {
    "smollm": (pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False),),
    "llama-bpe": _words(r"\p{N}{1,3}"),
    "qwen2": _words(r"\p{N}"),
}


def convert(source: Path, folder: Path, dtype: torch.dtype | None = torch.bfloat16) -> None:
    """Write `folder` (which exists) from `source`. dtype None: as the matrices are stored, float32 for quantised ones.
    Errors: BadInput for another architecture or vocabulary kind."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kinds = (meta["general.architecture"], meta["tokenizer.ggml.model"], meta.get("tokenizer.ggml.pre"))
    if kinds[0] not in FAMILIES or kinds[1] != "gpt2" or kinds[2] not in CUTS:
        allowed = f"(one of {sorted(FAMILIES)}, 'gpt2', one of {sorted(CUTS)})"
        raise BadInput(f"{source.name} is {kinds}", allowed, "the file")
    stored = {t.name: t.tensor_type.name for t in reader.tensors}
    dtype = dtype or {"BF16": torch.bfloat16, "F16": torch.float16}.get(stored["token_embd.weight"], torch.float32)
    config = _config(meta, set(stored), dtype)
    tensors = {}
    for t in reader.tensors:
        x = torch.from_numpy(dequantize(t.data, t.tensor_type).copy())
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(t.name.split(".")[-2])
        x = _unpermute(x, heads) if heads is not None and kinds[0] == "llama" else x
        tensors[_name(t.name)] = x.to(dtype).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    _tokenizer(meta).save_pretrained(folder)
    stops = [meta[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in meta]
    GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=stops if len(stops) > 1 else config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(folder)


def _config(meta: dict[str, Any], stored: set[str], dtype: torch.dtype) -> Any:
    family = meta["general.architecture"]
    cls, name = FAMILIES[family]
    at = {key.removeprefix(f"{family}."): value for key, value in meta.items() if key.startswith(f"{family}.")}
    more: dict[str, Any] = {}
    if family == "llama":
        more = {"attention_bias": "blk.0.attn_q.bias" in stored, "mlp_bias": "blk.0.ffn_up.bias" in stored}
    if "attention.key_length" in at:
        more["head_dim"] = at["attention.key_length"]
    return cls(
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=at["embedding_length"],
        intermediate_size=at["feed_forward_length"],
        num_hidden_layers=at["block_count"],
        num_attention_heads=at["attention.head_count"],
        num_key_value_heads=at["attention.head_count_kv"],
        max_position_embeddings=at["context_length"],
        rms_norm_eps=round(at["attention.layer_norm_rms_epsilon"], 10),
        rope_parameters={"rope_type": "default", "rope_theta": at["rope.freq_base"]},
        tie_word_embeddings="output.weight" not in stored,
        bos_token_id=meta.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=meta["tokenizer.ggml.eos_token_id"],
        pad_token_id=meta.get("tokenizer.ggml.padding_token_id"),
        dtype=str(dtype).removeprefix("torch."),
        architectures=[name],
        **more,
    )


def _name(gguf: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    inside = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", gguf)
    if inside:
        return f"model.layers.{inside[1]}.{(LAYER | QK_NORMS)[inside[2]]}.{inside[3]}"
    return f"{OUTER[gguf.removesuffix('.weight')]}.weight"


def _unpermute(x: Tensor, heads: int) -> Tensor:
    """(heads · D, ...): rows (pair, half) of each head back to (half, pair), as transformers' rotary embedding wants them."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


def _tokenizer(meta: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    pre = meta["tokenizer.ggml.pre"]
    vocab = {token: i for i, token in enumerate(tokens)}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(list(CUTS[pre]))
    inner.decoder = decoders.ByteLevel()
    added = [(t, k) for t, k in zip(tokens, kinds, strict=True) if k in (CONTROL, USER_DEFINED)]
    inner.add_tokens([AddedToken(t, normalized=False) for t, k in added if k == USER_DEFINED])
    inner.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in added if k == CONTROL])
    named = {
        name: tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding"), ("unk_token", "unknown"))
        if f"tokenizer.ggml.{key}_token_id" in meta
    }
    if meta.get("tokenizer.ggml.add_bos_token"):
        bos = named["bos_token"]
        inner.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, vocab[bos])])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        **named,
        chat_template=meta.get("tokenizer.chat_template"),
        model_max_length=meta[f"{meta['general.architecture']}.context_length"],
        clean_up_tokenization_spaces=False,
    )
