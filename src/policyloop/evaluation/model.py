"""MODEL -> an engine to ask. A folder (whole model or adapter), a run, a stored version, a URI, a catalogue name or a hub id (DESIGN §9 *Names*).

Example:
    >>> with open_model("run://word-problems-grpo@best") as model:
    ...     model.engine.run([Request("q", model.renderer.prompt_ids(prompt), params)])
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

from policyloop.engine import ENGINES, Engine, EngineSpec
from policyloop.engine.builtin import MAX_ROWS
from policyloop.models.catalogue import resolve
from policyloop.models.policy import choose_precision
from policyloop.models.template import Renderer, load_renderer
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


def open_model(name: str, precision: str = "auto", template: str | None = None) -> OpenModel:
    """Load MODEL into the built-in engine, an adapter over its base. Tokenizer and template are the folder's own (a run keeps those it
    was trained with), unless `template` says otherwise. Errors: NotFound, BadInput."""
    path = resolve(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = DTYPES[choose_precision(precision, device)]
    version = version_of(name, path)
    options = {} if template is None else {"template": template}
    engine = ENGINES["builtin"](EngineSpec(str(path), version, dtype, device, options))
    return OpenModel(name, path, engine, load_renderer(path, template), version, dtype, MAX_ROWS[device])


def version_of(name: str, path: Path) -> str:
    """`<run>#<step>` for a checkpoint of a run, `<name>@<n>` for a stored version, the name as given for everything else."""
    if (version := version_in(path)) is not None:
        return str(version)
    if path.name == "policy" and path.parent.name.isdigit():
        return f"{path.resolve().parent.parent.parent.name}#{int(path.parent.name)}"
    return name
