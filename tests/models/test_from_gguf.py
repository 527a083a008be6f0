"""A two-layer file written here the way llama.cpp writes one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from policyloop.errors import BadInput
from policyloop.models.from_gguf import LAYER, convert

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|end|>", "<|start|>", *LETTERS, "ĠĠ", "12"]


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), tie_word_embeddings=True, rope_parameters=rope, **sizes))
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.3)
        p.data = p.data.bfloat16().float()
    return made.eval()


def write(path: Path, source: LlamaForCausalLM, architecture: str = "llama", quantised: bool = False) -> None:
    writer = GGUFWriter(path, architecture)
    c = source.config
    writer.add_context_length(64)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * (len(TOKENS) - 2)])
    writer.add_token_merges(["Ġ Ġ", "1 2"])
    for add in (writer.add_bos_token_id, writer.add_unk_token_id):
        add(1)
    for add in (writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    names = {f"model.layers.{i}.{hf}": f"blk.{i}.{gg}" for i in range(2) for gg, hf in LAYER.items()}
    names |= {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    for hf, gg in names.items():
        w = source.get_parameter(f"{hf}.weight").detach().numpy()
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}.get(hf.rsplit(".", 1)[-1])
        if heads is not None:  # llama.cpp's own permutation
            w = w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
        kind = GGMLQuantizationType.Q8_0 if quantised and w.ndim == 2 else GGMLQuantizationType.F32
        data = np.ascontiguousarray(w) if kind == GGMLQuantizationType.F32 else quants.quantize(w, kind)
        writer.add_tensor(f"{gg}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def converted(tmp_path: Path, quantised: bool = False) -> Path:
    write(tmp_path / "m.gguf", model(), quantised=quantised)
    (tmp_path / "out").mkdir()
    convert(tmp_path / "m.gguf", tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize("quantised", [False, True])
def test_the_same_logits_come_out(tmp_path: Path, quantised: bool) -> None:
    found = AutoModelForCausalLM.from_pretrained(converted(tmp_path, quantised))
    assert found.dtype == torch.bfloat16 and found.config.rope_parameters["rope_theta"] == 5000.0
    assert found.lm_head.weight.data_ptr() == found.model.embed_tokens.weight.data_ptr()
    ids = torch.tensor([[5, 90, 17, 200, 33, 8]])
    with torch.no_grad():
        ours, wanted = found.float()(ids).logits, model()(ids).logits
    error = float((ours - wanted).abs().max() / wanted.abs().max())
    assert error < (0.05 if quantised else 1e-5)


def test_digits_are_cut_before_bpe_and_control_tokens_are_special(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("  12é<|end|>")["input_ids"])
    assert pieces == ["ĠĠ", "1", "2", "Ã", "©", "<|end|>"]
    assert tokenizer.decode(tokenizer("  12é<|end|>")["input_ids"], skip_special_tokens=True) == "  12é"
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}" and tokenizer.model_max_length == 64
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 0


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", model(), architecture="falcon")
    with pytest.raises(BadInput, match=r"m\.gguf is \('falcon'"):
        convert(tmp_path / "m.gguf", tmp_path)
