"""What is exported: a model folder, or an adapter folder with the base it was trained on. Weights come file by file, never a whole model at once.

Example:
    >>> source = Source.of(resolve("run://wp@best"))
    >>> for name, tensors in source.shards(): save_file(tensors, out / name)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from policyloop.engine import Weights
from policyloop.engine.weights import adapter_weights
from policyloop.errors import BadInput, StaleVersion
from policyloop.models.catalogue import base_of
from policyloop.models.policy import base_digest
from policyloop.models.template import Renderer, load_renderer

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Source:
    """`folder`: what MODEL resolved to. `base`: where whole weights lie (the same folder where there is no adapter)."""

    folder: Path
    base: Path
    adapter: Weights | None
    renderer: Renderer

    @staticmethod
    def of(folder: Path) -> Source:
        """Errors: StaleVersion for an adapter trained on other weights than its base has now; BadInput without safetensors."""
        is_adapter = (folder / "adapter_config.json").exists()
        base = base_of(folder) if is_adapter else folder
        adapter = None
        if is_adapter:
            digest = base_digest(base)
            adapter = adapter_weights(folder, folder.name, digest)
            if adapter.base_digest != digest:
                raise StaleVersion(
                    f"the adapter in {folder} was trained on other weights than {base} holds", "that base", str(base)
                )
        source = Source(folder, base, adapter, load_renderer(folder))
        if "quantization_config" in source.config:
            raise BadInput(f"{base} is quantised already", "the model it was made of", "MODEL")
        source.files()
        return source

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.base / "config.json").read_text(encoding="utf-8"))

    @property
    def tied(self) -> bool:
        """Whether head and embedding are one tensor."""
        text = self.config.get("text_config", self.config)
        return bool(text.get("tie_word_embeddings", self.config.get("tie_word_embeddings", False)))

    def files(self) -> list[Path]:
        """The base's weight files. Errors: BadInput where they are not safetensors (a pickle is never opened)."""
        index = self.base / INDEX
        names = (
            sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            if index.exists()
            else ["model.safetensors"]
        )
        missing = [name for name in names if not (self.base / name).exists()]
        if missing:
            raise BadInput(f"{self.base} has no {missing[0]}", "weights in safetensors", "MODEL")
        return [self.base / name for name in names]

    def shards(self) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """(file name, tensors) of the base as they are stored; a head that is tied to the embedding is left out."""
        for file in self.files():
            with safe_open(file, framework="pt") as opened:
                names = [n for n in opened.keys() if not (self.tied and n == "lm_head.weight")]  # noqa: SIM118
                yield file.name, {name: opened.get_tensor(name) for name in names}
