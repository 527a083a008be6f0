"""The engine's own copy of the weights: what a publish does to it, and how an adapter folder becomes `Weights`.

In: a loaded Hugging Face model. Its linears are swapped for prepacked ones; LoRA is merged from the untouched base at every publish
(W + scaling · B A in float32, then cast), so nothing drifts: publishing an old version again gives its bits again.

Example:
    >>> copy = OwnCopy(model)
    >>> change = copy.prepare(weights)      # every check and all the work; raises without having touched anything
    >>> change()                            # the swap
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from policyloop.engine import Weights
from policyloop.engine.linear import linears, pack, swap
from policyloop.errors import BadInput, StaleVersion
from policyloop.models.policy import BASE_NOTE, digest

Change = Callable[[], None]


class OwnCopy:
    """Parameters by name, tied ones once; `merged` = the linears that hold base + adapter now."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.parameters = {name: p.data for name, p in model.named_parameters()}
        swap(model)
        self.linears = linears(model)
        self.merged: frozenset[str] = frozenset()
        self.base_is_loaded = True

    def prepare(self, weights: Weights) -> Change:
        """Errors: ValueError for tensors that are not finite, damaged or do not fit."""
        for name, tensor in weights.tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"{weights.version} is not finite in {name}")
        if digest(weights.tensors) != weights.digest:
            raise ValueError(f"{weights.version} arrived damaged: its digest differs")
        return self._merge(weights) if weights.kind == "lora" else self._replace(weights)

    def _merge(self, weights: Weights) -> Change:
        if not self.base_is_loaded:
            raise StaleVersion(f"{weights.version} is an adapter, and full weights were published before it", "full weights")
        names = frozenset(n.removesuffix(".lora_A") for n in weights.tensors if n.endswith(".lora_A"))
        expected = {f"{name}.lora_{x}" for name in names for x in "AB"}
        _same_names(weights, set(weights.tensors), expected, names - set(self.linears))
        fresh: dict[str, Tensor] = {}
        for name in names:
            base = self.linears[name].weight
            a, b = (weights.tensors[f"{name}.lora_{x}"].to(base.device, torch.float32) for x in "AB")
            if (b.shape[0], a.shape[1]) != tuple(base.shape):
                raise ValueError(f"{weights.version} has {name} as {b.shape[0]} x {a.shape[1]}, the base as {tuple(base.shape)}")
            fresh[name] = (base.float() + weights.scaling * (b @ a)).to(base.dtype)
        for name in self.merged - names:
            fresh[name] = self.linears[name].weight
        packed = {name: pack(weight) for name, weight in fresh.items()}

        def change() -> None:
            for name, weight in fresh.items():
                self.linears[name].use(weight, packed[name])
            self.merged = names

        return change

    def _replace(self, weights: Weights) -> Change:
        _same_names(weights, set(weights.tensors), set(self.parameters), ())
        for name, own in self.parameters.items():
            if weights.tensors[name].shape != own.shape:
                raise ValueError(
                    f"{weights.version} has {name} as {tuple(weights.tensors[name].shape)}, the engine as {tuple(own.shape)}"
                )

        def change() -> None:
            for name, own in self.parameters.items():
                own.copy_(weights.tensors[name])
            for module in self.linears.values():
                module.use(module.weight, pack(module.weight))
            self.merged, self.base_is_loaded = frozenset(), False

        return change


def _same_names(weights: Weights, given: Collection[str], expected: Collection[str], strange: Collection[str]) -> None:
    odd = sorted({*strange, *set(given).symmetric_difference(expected)})
    if odd:
        raise ValueError(f"{weights.version} does not fit this model: {odd[0]} ({len(odd)} such names)")


def adapter_weights(folder: Path, version: str, base_digest: str) -> Weights:
    """A peft LoRA folder as `Weights` of the base it was trained on: as the folder says, else the one with `base_digest`.
    Errors: BadInput for adapters that are more than A and B."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    odd = [key for key in ("modules_to_save", "use_dora", "rank_pattern", "alpha_pattern") if config.get(key)]
    if config.get("peft_type") != "LORA" or odd:
        raise BadInput(f"the adapter in {folder} uses {odd[0] if odd else config.get('peft_type')}", "plain LoRA", str(folder))
    tensors = {}
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        tensors[name.removeprefix("base_model.model.").removesuffix(".weight")] = tensor
    scaling = config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"])
    if (note := folder / BASE_NOTE).exists():
        base_digest = json.loads(note.read_text(encoding="utf-8"))["digest"]
    return Weights(
        version=version, kind="lora", tensors=tensors, base_digest=base_digest, digest=digest(tensors), scaling=scaling
    )
