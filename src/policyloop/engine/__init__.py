"""Engines: token ids in, completions out. One engine samples for training, evaluates, checks exports and serves.

`run` is lockstep and has no clock: equal requests give equal batches and equal bits (training, evaluation, parity).
`stream` is continuous batching for serving; closing the iterator frees the slot.

Example:
    >>> engine = ENGINES["scripted"](EngineSpec("", "v#0", options={"answers": [[7, 2], [8, 2]]}))
    >>> engine.run([Request("q1/0/0", (11, 12), SamplingParams(max_new_tokens=4, n=2))])  # 2 completions, request order
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from policyloop.types import Completion, FinishReason, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to sample `params.n` completions of. `uid` seeds the random numbers: u = hash(seed, uid, sample, position).

    `max_new_tokens` per sample may be capped by the context; `first_sample` numbers the samples when a group is split. For `stream`:
    `client` is whom the queue is fair to, `deadline` (time.monotonic()) ends what is not finished then.
    """

    uid: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    first_sample: int = 0
    client: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a stream: whole characters only; `finish_reason` on the last one. `sample` is the index of the choice."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason | None
    version: str
    sample: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A published policy. kind `lora`: tensors `<module>.lora_A` (r, in) and `<module>.lora_B` (out, r), merged by the engine into
    its own copy as W + scaling * B @ A; `full`: `<parameter name>` -> tensor. `digest` is over names, shapes and bytes."""

    version: str
    kind: Literal["lora", "full"]
    tensors: Mapping[str, Tensor]
    base_digest: str
    digest: str
    scaling: float = 1.0


@dataclass(frozen=True, slots=True)
class Ack:
    """The engine's echo: what is now visible. A publish whose echo differs did not happen (the old version stays)."""

    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Status:
    """`base`: digest of the weights the engine was loaded from. `prefix_tokens`: prompt tokens found in the prefix cache so far."""

    version: str
    digest: str
    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    heartbeat_age_s: float = 0.0
    base: str = ""
    prefix_tokens: int = 0


class Engine(Protocol):
    """DESIGN §9 *Engine*. `logprobs` = log-softmax(logits / temperature) over the full vocabulary, before truncation."""

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """All completions, request order then sample order. Errors: BadInput for an empty or over-long prompt."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Delta]: ...

    def publish(self, weights: Weights) -> Ack:
        """Finite-check, swap, reset caches, echo. Errors: StaleVersion on another base, ValueError on non-finite tensors."""
        ...

    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probs (temperature 1) of `token_ids` after `prompt_ids`."""
        ...

    def status(self) -> Status: ...

    def close(self, drain_s: float = 0.0) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What every engine is made from: a model folder, dtype name (`float32`, `bfloat16`), first version, and its own options."""

    model_path: str
    version: str
    dtype: str = "float32"
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)


def _builtin(spec: EngineSpec) -> Engine:
    from policyloop.engine.builtin import BuiltinEngine

    return BuiltinEngine.load(spec)


def _scripted(spec: EngineSpec) -> Engine:
    from policyloop.engine.scripted import ScriptedEngine

    return ScriptedEngine.load(spec)


ENGINES: dict[str, Callable[[EngineSpec], Engine]] = {"builtin": _builtin, "scripted": _scripted}
