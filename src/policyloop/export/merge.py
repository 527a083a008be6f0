"""The two formats that keep the base's own numbers: a whole model with the adapter merged in, and the adapter alone.

W + scaling · B A is computed in float32 and cast back to the type that the base stores, tensor by tensor: no model is built, and what the
adapter does not touch is copied bit for bit. Tied heads stay tied.

Example:
    >>> merged(Source.of(folder), out, ExportSettings())
    ('full', None)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from policyloop.errors import BadInput
from policyloop.export import ExportSettings, Kind
from policyloop.export.source import INDEX, Source
from policyloop.models.policy import BASE_NOTE, base_digest

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def merged(source: Source, folder: Path, settings: ExportSettings) -> Kind:
    """config.json and safetensors in the base's own cut into files."""
    weight_map = {}
    exact = settings.dtype == "float32"
    for name, tensors in merged_shards(source, exact):
        save_file({k: t.contiguous() for k, t in tensors.items()}, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    if (source.base / INDEX).exists():
        total = json.loads((source.base / INDEX).read_text(encoding="utf-8")).get("metadata", {})
        (folder / INDEX).write_text(json.dumps({"metadata": total, "weight_map": weight_map}, indent=1) + "\n")
    config = source.config | ({"dtype": "float32"} if exact else {})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    ids_only(source, folder)
    return "full", None


def merged_shards(source: Source, exact: bool = False) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The base's files with the adapter added; exact: everything in float32, nothing rounded. Errors: BadInput for an adapter on weights that the files do not have."""
    if source.adapter is None:
        for file, shard in source.shards():
            yield file, {k: t.float() for k, t in shard.items()} if exact else shard
        return
    tensors = source.adapter.tensors
    left = {name.removesuffix(".lora_A") for name in tensors if name.endswith(".lora_A")}
    if source.tied and (tied := sorted(n for n in left if n.rsplit(".", 1)[-1] in ("lm_head", "embed_tokens"))):
        raise BadInput(
            f"the adapter changes {tied[0]}, which is tied", "an adapter on the layers inside", "model.lora.target_modules"
        )
    for file, stored in source.shards():
        shard = {k: t.float() for k, t in stored.items()} if exact else stored
        for module in sorted(left):
            if (base := shard.get(f"{module}.weight")) is not None:
                delta = tensors[f"{module}.lora_B"].float() @ tensors[f"{module}.lora_A"].float()
                shard[f"{module}.weight"] = (base.float() + source.adapter.scaling * delta).to(base.dtype)
                left.discard(module)
        yield file, shard
    if left:
        raise BadInput(f"the adapter changes {min(left)}, which {source.base} does not store", "an adapter of this base", "MODEL")


def adapter(source: Source, folder: Path, settings: ExportSettings) -> Kind:
    """The LoRA as peft and vLLM read it, with the digest of the weights it belongs to. Errors: BadInput where there is none."""
    if source.adapter is None:
        raise BadInput(f"{source.folder} is a whole model", "--format merged", "--format")
    for name in ADAPTER_FILES:
        shutil.copy(source.folder / name, folder / name)
    base = {"name": source.base.name, "path": str(source.base), "digest": base_digest(source.base)}
    (folder / BASE_NOTE).write_text(json.dumps(base, indent=1) + "\n")
    return "lora", base


def ids_only(source: Source, folder: Path) -> None:
    """generation_config.json with token ids and no sampling: an engine would silently apply what stands there. How to sample is said in
    the manifest."""
    file = source.base / "generation_config.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    kept = {k: v for k, v in known.items() if k.endswith("_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(kept, indent=1) + "\n")
