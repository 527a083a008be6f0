"""A model as one GGUF file (llama.cpp, Ollama) with template and stops, and a Modelfile beside it. `models.from_gguf` reads it back.

Llama, Qwen 2 and Qwen 3 with a byte-level BPE whose cut has a name in GGUF. Norms and biases are float32, matrices as `gguf_type` says.
Llama's q and k are stored with the halves of each rotary pair interleaved, as llama.cpp wants them.

Example:
    >>> gguf(Source.of(folder), out, ExportSettings(gguf_type="q8_0"))
    ('gguf', {'type': 'q8_0', 'source': 'policy'})
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from torch import Tensor

from policyloop.errors import BadInput
from policyloop.export import ExportSettings, Kind
from policyloop.export.merge import merged_shards
from policyloop.export.source import Source
from policyloop.models.from_gguf import CONTROL, CUTS, FAMILIES, LAYER, OUTER, QK_NORMS, USER_DEFINED
from policyloop.types import Message

FILE = "model.gguf"
NORMAL, UNUSED = 1, 5
TO_LAYER = {hf: name for name, hf in (LAYER | QK_NORMS).items()}
TO_OUTER = {f"{hf}.weight": f"{name}.weight" for name, hf in OUTER.items()}
STORED = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}


def gguf(source: Source, folder: Path, settings: ExportSettings) -> Kind:
    """model.gguf and Modelfile. Errors: BadInput for a family, a tokenizer or a rotary embedding that is not written."""
    from gguf import GGUFWriter, LlamaFileType

    config = source.config
    family, cut = check(config), cut_of(source)
    names = [name for _, tensors in source.shards() for name in tensors]
    config |= {"vocabulary": _rows(source), "untied": "lm_head.weight" in names}
    kind = settings.gguf_type if settings.gguf_type != "as_is" else STORED[_matrix_type(source)]
    writer = GGUFWriter(folder / FILE, family)
    writer.add_name(source.folder.name)
    writer.add_file_type(getattr(LlamaFileType, FILE_TYPES[kind]))
    _sizes(writer, config)
    _tokenizer(writer, source, cut, config["vocabulary"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config.get("num_key_value_heads", config["num_attention_heads"])}
    for _, tensors in merged_shards(source):
        for name, tensor in tensors.items():
            found = heads.get(name.rsplit(".", 2)[-2]) if family == "llama" else None
            _add(writer, _name(name), permuted(tensor, found) if found else tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "Modelfile").write_text(modelfile(source), encoding="utf-8")
    return "gguf", {"type": kind, "source": source.folder.name}


# --- what can be written ----------------------------------------------------------------------------------------------------


def check(config: Mapping[str, Any]) -> str:
    """GGUF's name of the family. Errors: BadInput."""
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise BadInput(f"GGUF of the family {family}", ", ".join(FAMILIES), "--format")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default":
        raise BadInput(f"GGUF of a model with {rope['rope_type']} rotary scaling", "no scaling", "--format")
    if config.get("use_sliding_window"):
        raise BadInput("GGUF of a model with sliding-window attention", "full attention", "--format")
    return family


def cut_of(source: Source) -> str:
    """GGUF's name for how the tokenizer cuts text. Errors: BadInput for a cut or a kind of tokenizer that has none here."""
    inner: Tokenizer = source.renderer.tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    tree = json.loads(inner.to_str())
    if tree["model"]["type"] == "BPE":
        own = _cut(tree["pre_tokenizer"])
        for name, parts in CUTS.items():
            known = Tokenizer(type(inner.model)())
            known.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
            if own == _cut(json.loads(known.to_str())["pre_tokenizer"]):
                return name
    raise BadInput(
        f"the tokenizer of {source.folder} ({tree['model']['type']}) has no name in GGUF",
        f"a byte-level BPE cut as one of {', '.join(CUTS)}",
        "--format merged",
    )


def _cut(tree: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The parts of a pre-tokenizer that decide where text is cut (offsets do not)."""
    parts = [] if tree is None else tree["pretokenizers"] if tree["type"] == "Sequence" else [tree]
    return [{k: v for k, v in part.items() if k != "trim_offsets"} for part in parts]


def _rows(source: Source) -> int:
    for _, tensors in source.shards():
        if "model.embed_tokens.weight" in tensors:
            return int(tensors["model.embed_tokens.weight"].shape[0])
    raise BadInput(f"{source.base} stores no model.embed_tokens.weight", "a Llama or Qwen model", "MODEL")


def _matrix_type(source: Source) -> torch.dtype:
    return next(t.dtype for _, tensors in source.shards() for t in tensors.values() if t.dim() == 2)


# --- sizes and tokenizer ----------------------------------------------------------------------------------------------------


def _sizes(writer: Any, c: Mapping[str, Any]) -> None:
    heads = c["num_attention_heads"]
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(c.get("num_key_value_heads") or heads)
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    rope = c.get("rope_parameters") or {}
    writer.add_rope_freq_base(float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0))
    size = c.get("head_dim") or c["hidden_size"] // heads
    writer.add_rope_dimension_count(size)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_vocab_size(c["vocabulary"])


def _tokenizer(writer: Any, source: Source, cut: str, rows: int) -> None:
    tokenizer = source.renderer.tokenizer
    tree = json.loads(tokenizer.backend_tokenizer.to_str())  # type: ignore[attr-defined]
    names = {i: token for token, i in tokenizer.get_vocab().items()}
    added = {t["id"]: CONTROL if t["special"] else USER_DEFINED for t in tree["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list([names.get(i, f"[PAD{i}]") for i in range(rows)])
    writer.add_token_types([added.get(i, NORMAL if i in names else UNUSED) for i in range(rows)])
    merges = tree["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for add, token in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
    ):
        if token is not None:
            add(int(str(token)))
    end, stops = tokenizer.eos_token_id, list(source.renderer.stop_ids)
    writer.add_eos_token_id(int(str(end)) if end is not None else stops[0])
    if others := [i for i in stops if i != end]:
        writer.add_eot_token_id(others[0])
    writer.add_add_bos_token(tokenizer.bos_token_id in tokenizer("", verbose=False)["input_ids"])
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)


# --- tensors ----------------------------------------------------------------------------------------------------------------


def _name(hf: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` -> `blk.3.attn_q.weight`. Errors: BadInput."""
    inside = re.fullmatch(r"model\.layers\.(\d+)\.([\w.]+)\.(weight|bias)", hf)
    if inside and inside[2] in TO_LAYER:
        return f"blk.{inside[1]}.{TO_LAYER[inside[2]]}.{inside[3]}"
    if hf not in TO_OUTER:
        raise BadInput(f"{hf} has no name in GGUF", "the layers of Llama and Qwen", "--format merged")
    return TO_OUTER[hf]


def permuted(x: Tensor, heads: int) -> Tensor:
    """(heads · D, ...): the two halves of each head's rotary pairs interleaved, as llama.cpp wants them."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)


def _add(writer: Any, name: str, tensor: Tensor, kind: str) -> None:
    """Vectors in float32; a matrix whose rows do not fill q8_0's blocks in float16."""
    from gguf import GGMLQuantizationType, quants

    if tensor.dim() < 2:
        kind = "f32"
    elif kind == "q8_0" and tensor.shape[-1] % 32:
        kind = "f16"
    stored = GGMLQuantizationType[kind.upper()]
    data = tensor.float().contiguous().numpy()
    writer.add_tensor(name, quants.quantize(data, stored), raw_dtype=stored)


# --- Ollama -----------------------------------------------------------------------------------------------------------------


def modelfile(source: Source) -> str:
    """FROM, TEMPLATE (one turn, from what our own template renders around two marks), stops and greedy decoding."""
    stops = source.renderer.tokenizer.convert_ids_to_tokens(list(source.renderer.stop_ids))
    lines = [f"FROM ./{FILE}", f'TEMPLATE """{go_template(source)}"""', *(f'PARAMETER stop "{s}"' for s in stops)]
    return "\n".join(lines) + "\n"


def go_template(source: Source) -> str:
    """Ollama's template of one turn. Its BOS is the tokenizer's to write."""
    renderer, system, user = source.renderer, "\x01system\x01", "\x01user\x01"
    if not renderer.chat:
        return "{{ .Prompt }}"
    tokenizer = renderer.tokenizer

    def around(messages: list[Message]) -> tuple[str, str]:
        text = renderer.text(messages)
        if isinstance(tokenizer.bos_token, str) and tokenizer.bos_token_id in tokenizer("", verbose=False)["input_ids"]:
            text = text.removeprefix(tokenizer.bos_token)
        head, _, tail = text.partition(user)
        return head, tail

    head, tail = around([Message("user", user)])
    try:
        with_system, _ = around([Message("system", system), Message("user", user)])
        head = f"{{{{ if .System }}}}{with_system.replace(system, '{{ .System }}')}{{{{ else }}}}{head}{{{{ end }}}}"
    except BadInput:  # a template without system messages
        pass
    return f"{head}{{{{ .Prompt }}}}{tail}{{{{ .Response }}}}"
