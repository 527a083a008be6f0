"""A Llama GGUF file to an ordinary Hugging Face folder: weights dequantised to bfloat16, tokenizer, chat template, stop ids.

GGUF stores the rows of q and k with the two halves of each rotary pair interleaved; they are put back here. Only architecture
`llama` with a byte-level BPE vocabulary is read: what the catalogue holds. (transformers reads GGUF as well, in three passes that
take three times as long, and leaves out the cut between digits.)

Example: `convert(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), Path("out"))` -> out/{config.json, model.safetensors, tokenizer.json}
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from policyloop.errors import BadInput

CONTROL = 3  # GGUF's token type of special tokens
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
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# how the text is cut before BPE, by GGUF's name for it
CUTS = {"smollm": (pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False))}


def convert(source: Path, folder: Path) -> None:
    """Write `folder` (which exists) from `source`. Errors: BadInput for another architecture or vocabulary kind."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(source)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    kinds = (meta["general.architecture"], meta["tokenizer.ggml.model"], meta.get("tokenizer.ggml.pre"))
    if kinds[0] != "llama" or kinds[1] != "gpt2" or kinds[2] not in CUTS:
        raise BadInput(f"{source.name} is {kinds}", f"('llama', 'gpt2', one of {sorted(CUTS)})", "the file")
    config = _config(meta, tied=all(t.name != "output.weight" for t in reader.tensors))
    tensors = {}
    for t in reader.tensors:
        x = torch.from_numpy(dequantize(t.data, t.tensor_type).copy())
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(t.name.split(".")[-2])
        tensors[_name(t.name)] = (x if heads is None else _unpermute(x, heads)).to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    _tokenizer(meta).save_pretrained(folder)
    GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)


def _config(meta: dict[str, Any], tied: bool) -> LlamaConfig:
    at = {name.removeprefix("llama."): value for name, value in meta.items() if name.startswith("llama.")}
    return LlamaConfig(
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=at["embedding_length"],
        intermediate_size=at["feed_forward_length"],
        num_hidden_layers=at["block_count"],
        num_attention_heads=at["attention.head_count"],
        num_key_value_heads=at["attention.head_count_kv"],
        max_position_embeddings=at["context_length"],
        rms_norm_eps=round(at["attention.layer_norm_rms_epsilon"], 10),
        rope_parameters={"rope_type": "default", "rope_theta": at["rope.freq_base"]},
        tie_word_embeddings=tied,
        bos_token_id=meta["tokenizer.ggml.bos_token_id"],
        eos_token_id=meta["tokenizer.ggml.eos_token_id"],
        pad_token_id=meta["tokenizer.ggml.padding_token_id"],
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )


def _name(gguf: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    inside = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", gguf)
    if inside:
        return f"model.layers.{inside[1]}.{LAYER[inside[2]]}.weight"
    return f"{OUTER[gguf.removesuffix('.weight')]}.weight"


def _unpermute(x: Tensor, heads: int) -> Tensor:
    """(heads · D, in): rows (pair, half) of each head back to (half, pair), as transformers' rotary embedding wants them."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, x.shape[1]).transpose(1, 2).reshape(x.shape)


def _tokenizer(meta: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    inner = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(list(CUTS[meta["tokenizer.ggml.pre"]]))
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, kinds, strict=True) if k == CONTROL]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=tokens[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[meta["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[meta["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[meta["tokenizer.ggml.unknown_token_id"]],
        chat_template=meta["tokenizer.chat_template"],
        model_max_length=meta["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
