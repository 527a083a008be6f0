"""MODEL -> an engine to ask. A folder (whole model or adapter), a run, a catalogue name or a hub id (DESIGN §9 *Names*).

Example:
    >>> model = open_model("runs/word-problems-grpo")
    >>> model.engine.run([Request("q", model.renderer.prompt_ids(prompt), params)])
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from policyloop.engine import ENGINES, Engine, EngineSpec, Weights
from policyloop.models.catalogue import base_of, resolve
from policyloop.models.policy import base_digest, choose_precision, digest
from policyloop.models.template import Renderer, load_renderer

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that answers: `version` is how it is called in results."""

    name: str
    path: Path
    engine: Engine
    renderer: Renderer
    version: str


def open_model(name: str, precision: str = "auto", template: str | None = None) -> OpenModel:
    """Load MODEL into the built-in engine; an adapter is published over its base. Errors: NotFound, BadInput."""
    path = resolve(name)
    adapter = path if (path / "adapter_config.json").exists() else None
    base = base_of(path) if adapter is not None else path
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = {} if template is None else {"template": template}
    version = version_of(name, path)
    spec = EngineSpec(str(base), version, DTYPES[choose_precision(precision, device)], device, options)
    engine = ENGINES["builtin"](spec)
    if adapter is not None:
        engine.publish(adapter_weights(adapter, base, version))
    return OpenModel(name, path, engine, load_renderer(base, template), version)


def adapter_weights(adapter: Path, base: Path, version: str) -> Weights:
    """A peft adapter folder as weights to publish."""
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    tensors = {}
    for name, value in load_file(adapter / "adapter_model.safetensors").items():
        module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
        tensors[f"{module}.lora_{kind[0]}"] = value
    scaling = config["lora_alpha"] / config["r"]
    return Weights(
        version=version, kind="lora", tensors=tensors, base_digest=base_digest(base), digest=digest(tensors), scaling=scaling
    )


def version_of(name: str, path: Path) -> str:
    """`<run>#<step>` for a checkpoint of a run, the name as given for everything else."""
    if path.name == "policy" and path.parent.name.isdigit():
        return f"{path.parent.parent.parent.name}#{int(path.parent.name)}"
    return name
