"""MODEL -> an engine to ask. A folder (whole model or adapter), a run, a stored version, a URI, a catalogue name or a hub id (DESIGN §9 *Names*).

Example:
    >>> with open_model("run://word-problems-grpo@best") as model:
    ...     model.engine.run([Request("q", model.renderer.prompt_ids(prompt), params)])
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from policyloop.engine import ENGINES, Engine, EngineSpec, Weights
from policyloop.engine.builtin import MAX_ROWS
from policyloop.engine.weights import adapter_weights
from policyloop.errors import BadInput
from policyloop.models.catalogue import base_of, resolve
from policyloop.models.policy import base_digest, choose_precision
from policyloop.models.template import Renderer, load_renderer
from policyloop.serve import Opened
from policyloop.store import version_in

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model that answers: `version` is how it is called in results, `rows` how many answers it works on at once. Leaving the `with`
    frees its memory."""

    name: str
    path: Path
    engine: Engine
    renderer: Renderer
    version: str
    dtype: str
    rows: int

    def __enter__(self) -> OpenModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()
        gc.collect()  # an engine and its attention hold each other: without this the next model comes on top of this one


def open_model(
    name: str, precision: str = "auto", template: str | None = None, options: Mapping[str, Any] | None = None
) -> OpenModel:
    """Load MODEL into the built-in engine, an adapter over its base. Tokenizer and template are the folder's own (a run keeps those it
    was trained with), unless `template` says otherwise. options: the engine's. Errors: NotFound, BadInput."""
    path = resolve(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = DTYPES[choose_precision(precision, device)]
    version = version_of(name, path)
    more = {**(options or {}), **({} if template is None else {"template": template})}
    engine = ENGINES["builtin"](EngineSpec(str(path), version, dtype, device, more))
    return OpenModel(name, path, engine, load_renderer(path, template), version, dtype, MAX_ROWS[device])


class ModelOpener:
    """MODEL names for a server: opened, as weights for an engine that runs already, or as a folder for another engine."""

    def __init__(self, precision: str = "auto", template: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.precision, self.template, self.options = precision, template, options or {}

    def open(self, model: str) -> Opened:
        opened = open_model(model, self.precision, self.template, self.options)
        return Opened(opened.engine, opened.renderer, opened.version, sampling_of(opened.path))

    def weights(self, model: str, base: str) -> Weights | None:
        path = resolve(model)
        if not (path / "adapter_config.json").exists() or base_digest(base_of(path)) != base:
            return None
        return adapter_weights(path, version_of(model, path), base)

    def folder(self, model: str) -> tuple[Path, Mapping[str, Any]]:
        path = resolve(model)
        if (path / "adapter_config.json").exists():
            raise BadInput(f"{model} is an adapter", "a whole model (policyloop export merges them)", "MODEL")
        return path, sampling_of(path)


def sampling_of(path: Path) -> Mapping[str, Any]:
    """A stored version's own sampling defaults; none for any other folder: its generation config is somebody else's taste."""
    version = version_in(path)
    return {} if version is None else dict(version.serving.get("sampling") or {})


def version_of(name: str, path: Path) -> str:
    """`<run>#<step>` for a checkpoint of a run, `<name>@<n>` for a stored version, the name as given for everything else."""
    if (version := version_in(path)) is not None:
        return str(version)
    if path.name == "policy" and path.parent.name.isdigit():
        return f"{path.resolve().parent.parent.parent.name}#{int(path.parent.name)}"
    return name
