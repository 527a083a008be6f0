"""Serving: a model behind the OpenAI API and /predict, whatever engine answers.

In: MODEL and `ServeSettings`. Out: a server that is fast, bounded and observable. A backend turns one `Ask` into pieces of text:
`builtin` is the engine that trained the model, `http` any OpenAI-compatible server, `vllm` one that is started here. Routes, limits, keys,
metrics and the journal see backends only.

Example (the life of a request):
    route -> Service.ask (key, limits, prompt to ids, a place in the queue) -> Backend.answer -> Pieces -> JSON or events -> metrics, journal
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from policyloop.api.replies import Token
from policyloop.engine import Engine, Weights
from policyloop.types import FinishReason, Message, Prompt, SamplingParams, settings

EngineName = Literal["builtin", "http", "vllm"]
Content = str | tuple[int, ...] | tuple[Message, ...]


@settings
class ServeSettings:
    """engine: builtin, http (needs `url`) or vllm. name: what clients call the model (default: MODEL as given). keys: a key file.

    max_waiting: answers that may wait for a place before the next request gets 429. deadline_s: what a request may take; a client may ask
    for less with the header x-policyloop-deadline-s. max_new_tokens: limit where a request names none. drain_s: what running requests have
    after SIGTERM. stuck_s: age of the heartbeat at which /health/live says no. Prompts and answers are in no log; the journal holds them where one is kept.
    """

    engine: EngineName = "builtin"
    url: str | None = None
    name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    admin_host: str = "127.0.0.1"
    admin_port: int = 8090
    keys: str | None = None
    max_waiting: int = 256
    deadline_s: float = 120.0
    max_new_tokens: int = 256
    drain_s: float = 25.0
    stuck_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `params.max_new_tokens` is what the client asked for; 0 = it named no limit. `deadline`: time.monotonic().

    `extras`: known fields beyond the schema that the backend said it honours. `adapter`: a LoRA adapter's name, empty = the base."""

    request_id: str
    client: str
    content: Content
    params: SamplingParams
    deadline: float
    wants_logprobs: bool = False
    extras: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of one answer. `tokens` where log-probs were asked for; `token_ids` and `logprobs` where the engine has them."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason | None
    version: str
    tokens: tuple[Token, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """An `Ask` that passed every check: its prompt as ids (empty where another server renders it), what it may cost, and its answer."""

    ask: Ask
    prompt_token_ids: tuple[int, ...]
    max_new_tokens: int
    pieces: Callable[[], AsyncGenerator[Piece, None]]
    prompt_tokens: Callable[[], int]
    completion_tokens: Callable[[], int | None] = lambda: None


@dataclass(frozen=True, slots=True)
class Load:
    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    prefix_tokens: int = 0


class ServedRenderer(Protocol):
    """What is needed of `models.template.Renderer`."""

    @property
    def chat(self) -> bool: ...

    @property
    def context(self) -> int | None: ...

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]: ...

    def stream(self) -> TextPieces: ...


class TextPieces(Protocol):
    """Ids in, whole characters out."""

    def push(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A model that answers. `sampling`: its own defaults."""

    engine: Engine
    renderer: ServedRenderer
    version: str
    sampling: Mapping[str, Any]


class Opener(Protocol):
    def open(self, model: str) -> Opened: ...

    def weights(self, model: str, base: str) -> Weights | None:
        """The weights of an adapter of this base (its digest), None for everything else."""
        ...

    def folder(self, model: str) -> tuple[Path, Mapping[str, Any]]:
        """A folder that another engine can load, and the model's sampling defaults."""
        ...


class Backend(Protocol):
    """`honours`: names of known fields beyond the schema. `defaults`: the model's own sampling. `chat`: whether messages can be rendered."""

    honours: frozenset[str]

    @property
    def defaults(self) -> Mapping[str, Any]: ...

    @property
    def chat(self) -> bool: ...

    async def start(self) -> None:
        """Load and warm up."""
        ...

    def models(self) -> Mapping[str, str]:
        """What clients may ask for: name -> version; the first is the default."""
        ...

    async def ready(self, ask: Ask) -> Ready:
        """Errors: BadInput for what cannot be answered, before anything is queued."""
        ...

    def load(self) -> Load: ...

    def beat_age_s(self) -> float: ...

    async def swap(self, model: str) -> str:
        """Other weights under traffic; the version that answers from now on. On any error the old ones stay."""
        ...

    async def add_adapter(self, name: str, model: str) -> str: ...

    async def remove_adapter(self, name: str) -> None: ...

    async def close(self, drain_s: float) -> None: ...
