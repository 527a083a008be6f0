"""What a run will need in memory, from the model's config alone: no weights are read, nothing is downloaded.

In: a recipe's model settings and sizes. Out: bytes by use. `local` answers only for models that are on this machine.

Example:
    >>> need_of(Path("~/.cache/policyloop/models/smollm2-135m-instruct").expanduser(), LoraSettings(), "fp32", tokens=4096).total
    6.6e9
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.catalogue import CATALOGUE, NOTE, base_of, cache_folder, resolve
from policyloop.models.memory import BYTES, Need, available_bytes


def local(model: str) -> Path | None:
    """The base model's folder if it is on this machine, else None."""
    name = model.lower()
    if name in CATALOGUE:
        built = CATALOGUE[name].wheel is None and CATALOGUE[name].hub_id is None
        return resolve(name) if built or (cache_folder() / name / NOTE).exists() else None
    if not Path(model).expanduser().is_dir() and "://" not in model:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, "config.json") if model.count("/") == 1 else None
        return Path(found).parent if isinstance(found, str) else None
    folder = resolve(model)
    return base_of(folder) if (folder / "adapter_config.json").exists() else folder


def need_of(folder: Path, lora: LoraSettings | None, precision: str, tokens: int, checkpointing: bool = False) -> Need:
    """Bytes of one update of `tokens` tokens. The model is laid out without storage, only to count."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    base = sum(p.numel() for p in model.parameters())
    trainable = base if lora is None else _adapter_parameters(model, lora)
    parameters = base if lora is None else base + trainable
    return Need.of(config, parameters, trainable, precision, tokens, checkpointing)


def memory_line(
    settings: ModelSettings, precision: str, device: str, micro_batch_tokens: int, rows: int, row_tokens: int, reference: bool
) -> str:
    """One sentence: what an update takes, what the engine holds beside it for `rows` answers of `row_tokens`, what is free."""
    from transformers import AutoConfig

    folder = local(settings.base_model_path)
    if folder is None:
        return f"memory: not estimated, {settings.base_model_path} is not on this machine yet"
    checkpointing = settings.gradient_checkpointing
    need = need_of(folder, settings.lora, precision, micro_batch_tokens, checkpointing is True)
    free = available_bytes(device)
    note = ""
    if checkpointing == "auto" and need.total > 0.8 * free:
        need, note = (
            need_of(folder, settings.lora, precision, micro_batch_tokens, True),
            ", gradient checkpointing switched on for it",
        )
    copy = need.weights if settings.lora is not None else need.weights * BYTES[precision] // 4  # what trains is kept in float32
    kept = rows * row_tokens * kv_bytes(AutoConfig.from_pretrained(folder, local_files_only=True), BYTES[precision])
    anchor = copy if reference and settings.lora is None else 0
    total = need.total + copy + kept + anchor
    parts = {
        "weights": need.weights,
        "optimizer": need.training,
        "activations": need.activations + need.head,
        "engine's copy": copy,
    }
    parts |= {"its keys and values": kept} | ({"reference": anchor} if anchor else {})
    said = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items())
    short = "" if total < free else "; it does not fit: lower training.micro_batch_tokens, or train with LoRA"
    return f"memory: at most about {total / 1e9:.1f} GB ({said}){note}; {free / 1e9:.1f} GB are free{short}"


def kv_bytes(config: Any, width: int) -> int:
    """Keys and values of one position in all layers."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * size * width


def _adapter_parameters(model: Any, lora: LoraSettings) -> int:
    """r x (in + out) for every linear layer that gets an adapter; the head gets none."""
    import torch

    head = model.get_output_embeddings()
    linear = [(n.rsplit(".", 1)[-1], m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head]
    chosen = [m for name, m in linear if lora.target_modules == "all-linear" or name in lora.target_modules]
    return sum(lora.r * (m.in_features + m.out_features) for m in chosen)
