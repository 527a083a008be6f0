"""Export: a trained model to a folder that stands alone, proven to say what the trained model says. Settings and table live here (no torch).

In: MODEL and `ExportSettings`. Out: a bundle: weights, tokenizer with template, generation config, golden prompts with the trained model's
answers, and a manifest that is written last. Formats are rows of `FORMATS`; safetensors or GGUF, never a pickle.

Example:
    >>> made = export("run://word-problems-grpo@best", Path("out/wp"), ExportSettings(format="int8"), Origin(task="word_problems"))
    >>> made.promotable, made.distance.kl
    (True, 0.0008)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from policyloop.errors import BadInput
from policyloop.types import settings

if TYPE_CHECKING:
    from policyloop.export.source import Source

Kind = tuple[
    str, dict[str, Any] | None
]  # the manifest's `kind` (full, lora, quantised, gguf) and `base`: what it needs or was made of
Format = Callable[["Source", Path, "ExportSettings"], Kind]


@settings
class ParitySettings:
    """How far an export may be from the model it was made of, on golden prompts that are kept in the bundle.

    prompts: how many. max_new_tokens: per answer; each prompt is answered greedily and once at temperature 1.
    max_kl: nats per sampled token. max_logprob: mean absolute difference of log-probs. min_greedy_same: share of equal greedy answers.
    """

    prompts: int = 16
    max_new_tokens: int = 32
    max_kl: float = 0.05
    max_logprob: float = 0.1
    min_greedy_same: float = 0.5

    def __post_init__(self) -> None:
        for name in ("prompts", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise BadInput(f"export.parity.{name} = {getattr(self, name)}", "1 or more", f"export.parity.{name}")
        for name in ("max_kl", "max_logprob"):
            if getattr(self, name) < 0:
                raise BadInput(f"export.parity.{name} = {getattr(self, name)}", "0 or more", f"export.parity.{name}")
        if not 0 <= self.min_greedy_same <= 1:
            raise BadInput(f"export.parity.min_greedy_same = {self.min_greedy_same}", "0 to 1", "export.parity.min_greedy_same")


@settings
class ExportSettings:
    """format: merged (whole model in safetensors, an adapter merged in), adapter (the LoRA alone, for vLLM), int8 and int4 (torchao, weights
    only), gguf (llama.cpp, Ollama). dtype: of a merged model; base rounds the adapter to the base's own types, float32 keeps all of it.
    gguf_type: how matrices are stored in a GGUF file; as_is = the base's own type."""

    format: Literal["merged", "adapter", "int8", "int4", "gguf"] = "merged"
    dtype: Literal["base", "float32"] = "base"
    gguf_type: Literal["as_is", "f32", "f16", "bf16", "q8_0"] = "as_is"
    parity: ParitySettings = ParitySettings()


def _lazy(module: str, function: str) -> Format:
    def write(source: Source, folder: Path, settings: ExportSettings) -> Kind:
        return getattr(importlib.import_module(f"policyloop.export.{module}"), function)(source, folder, settings)

    return write


FORMATS: dict[str, Format] = {
    "merged": _lazy("merge", "merged"),
    "adapter": _lazy("merge", "adapter"),
    "int8": _lazy("quantise", "int8"),
    "int4": _lazy("quantise", "int4"),
    "gguf": _lazy("to_gguf", "gguf"),
}
