"""Any OpenAI-compatible server as a backend: vLLM, SGLang, TGI, trtllm-serve, llama.cpp. The same API in front, theirs behind.

In: its base URL (`http://host:8001/v1`). Requests are sent as streams whatever the client asked for, so that a client that leaves frees the
slot there too. Token ids stay there: the journal has the text's count and log-probs, not the ids.

Example:
    >>> backend = HttpBackend("http://127.0.0.1:8001/v1", "arith", settings); await backend.start()
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, cast

import httpx

from policyloop.api import printable
from policyloop.api.replies import Token
from policyloop.api.sse import events
from policyloop.errors import BadInput, NotFound, Overloaded, Problem, Unavailable
from policyloop.serve import Ask, Load, Piece, Ready, ServeSettings
from policyloop.types import FinishReason, Message

KEY = "POLICYLOOP_UPSTREAM_KEY"
START_S = 600.0
HONOURS: frozenset[str] = frozenset(
    [
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "response_format",
        "min_tokens",
        "bad_words",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "structured_outputs",
        "chat_template_kwargs",
    ]
)
REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "deadline": "deadline",
    "eos_token": "stop",
}


class HttpBackend:
    honours = HONOURS
    chat = True

    def __init__(
        self, url: str, name: str, settings: ServeSettings, upstream: str | None = None, start_s: float = START_S
    ) -> None:
        """`upstream`: what the other server calls the model (default: the first it lists). `start_s`: how long it may take to come up."""
        self.url, self.name, self.settings, self.upstream, self.start_s = url.rstrip("/"), name, settings, upstream, start_s
        self.version = "none"
        self.running = 0
        key = os.environ.get(KEY)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.client = httpx.AsyncClient(headers=headers, limits=limits, timeout=httpx.Timeout(settings.deadline_s, connect=5.0))

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {}

    async def start(self) -> None:
        """Wait until it lists its models. Errors: Unavailable."""
        waited = 0.0
        while True:
            try:
                reply = await self.client.get(f"{self.url}/models")
                if reply.status_code == 200:
                    self._meet(reply.json())
                    return
                why = f"answers {reply.status_code}"
            except (httpx.HTTPError, ValueError, KeyError, IndexError) as problem:
                why = f"cannot be asked ({type(problem).__name__})"
            if waited >= self.start_s:
                raise Unavailable(f"{self.url} {why}", "an OpenAI-compatible server there", "--url")
            await asyncio.sleep(0.5)
            waited += 0.5

    def _meet(self, listed: dict[str, Any]) -> None:
        names = [str(row["id"]) for row in listed["data"]]
        if self.upstream is not None and self.upstream not in names:
            raise NotFound(f"{self.url} has no model {self.upstream}", ", ".join(names), "--upstream-model")
        row = listed["data"][0 if self.upstream is None else names.index(self.upstream)]
        self.upstream = str(row["id"])
        self.version = str(row.get("version") or self.upstream)

    def models(self) -> Mapping[str, str]:
        return {self.name: self.version}

    async def ready(self, ask: Ask) -> Ready:
        limit = ask.params.max_new_tokens or self.settings.max_new_tokens
        counts: dict[str, int] = {}
        return Ready(
            ask,
            (),
            limit,
            lambda: self._pieces(ask, limit, counts),
            lambda: counts.get("prompt_tokens", 0),
            lambda: counts.get("completion_tokens"),
        )

    async def _pieces(self, ask: Ask, limit: int, counts: dict[str, int]) -> AsyncGenerator[Piece, None]:
        """Errors: what the other server refuses is passed on with its sentence; what it breaks is Unavailable."""
        path, body = _sent(ask, limit, self.upstream or "")
        self.running += ask.params.n
        try:
            async with self.client.stream("POST", self.url + path, json=body) as reply:
                if reply.status_code != 200:
                    raise _refused(reply.status_code, await reply.aread(), reply.headers.get("retry-after"))
                async for chunk in events(reply.aiter_lines()):
                    counts.update({k: v for k, v in (chunk.get("usage") or {}).items() if isinstance(v, int)})
                    for choice in chunk.get("choices", ()):
                        yield self._piece(choice, str(chunk.get("version") or self.version), ask.wants_logprobs)
        except httpx.HTTPError as problem:
            raise Unavailable(f"the engine behind this server failed ({type(problem).__name__})", retry_after_s=2) from problem
        finally:
            self.running -= ask.params.n

    def _piece(self, choice: dict[str, Any], version: str, wants_logprobs: bool) -> Piece:
        text = choice.get("text")
        text = choice.get("delta", {}).get("content") if text is None else text
        tokens = _tokens(choice.get("logprobs"))
        reason = choice.get("finish_reason")
        return Piece(
            int(choice.get("index", 0)),
            str(text or ""),
            (),
            tuple(t.logprob for t in tokens),
            None if reason is None else REASONS.get(str(reason), "stop"),
            version,
            tuple(tokens) if wants_logprobs else None,
        )

    def load(self) -> Load:
        return Load(running=self.running)

    def beat_age_s(self) -> float:
        return 0.0  # its own probe's business

    async def swap(self, model: str) -> str:
        raise BadInput("an engine behind HTTP changes its weights itself", "the other server's own way", "engine")

    async def add_adapter(self, name: str, model: str) -> str:
        raise BadInput("an engine behind HTTP loads its adapters itself", "the other server's own way", "engine")

    async def remove_adapter(self, name: str) -> None:
        raise BadInput("an engine behind HTTP loads its adapters itself", "the other server's own way", "engine")

    async def close(self, drain_s: float) -> None:
        await self.client.aclose()


def _sent(ask: Ask, limit: int, model: str) -> tuple[str, dict[str, Any]]:
    """The other server's route and body. top_k, min_p and ignore_eos are sent only where they say something: not every server knows them."""
    p = ask.params
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": limit,
        "temperature": p.temperature,
        "top_p": p.top_p,
        "n": p.n,
        "seed": p.seed % (1 << 63),
        "stream": True,
        "stream_options": {"include_usage": True},
        **ask.extras,
    }
    body |= {name: value for name, value in (("top_k", p.top_k), ("min_p", p.min_p), ("ignore_eos", p.ignore_eos)) if value}
    body |= {name: list(value) for name, value in (("stop", p.stop), ("stop_token_ids", p.stop_ids)) if value}
    if isinstance(ask.content, tuple) and ask.content and isinstance(ask.content[0], Message):
        messages = [{"role": m.role, "content": m.content} for m in cast(tuple[Message, ...], ask.content)]
        return "/chat/completions", body | {"messages": messages} | ({"logprobs": True} if ask.wants_logprobs else {})
    prompt = ask.content if isinstance(ask.content, str) else list(ask.content)
    return "/completions", body | {"prompt": prompt} | ({"logprobs": 1} if ask.wants_logprobs else {})


def _tokens(logprobs: Any) -> Sequence[Token]:
    """Chat's rows or completions' columns."""
    if not isinstance(logprobs, dict):
        return ()
    if rows := logprobs.get("content"):
        return [Token(str(row["token"]), float(row["logprob"])) for row in rows]
    columns = zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=False)
    return [Token(str(text), float("nan") if value is None else float(value)) for text, value in columns]


def _refused(status: int, raw: bytes, retry_after: str | None) -> Problem:
    wait = float(retry_after) if retry_after and retry_after.isdigit() else None
    if status == 429:
        return Overloaded("the engine behind this server is full", retry_after_s=wait)
    if status >= 500 or status in (401, 403):
        return Unavailable(f"the engine behind this server answers {status}", retry_after_s=wait)
    try:
        said = httpx.Response(status, content=raw).json()
        message = said.get("error", said).get("message", "") if isinstance(said, dict) else ""
    except (ValueError, AttributeError):
        message = ""
    return BadInput(printable(str(message) or f"the engine behind this server refuses the request ({status})", 400))
