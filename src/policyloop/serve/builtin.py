"""The built-in engine as a backend: prompts to ids in a thread of their own, answers from `engine.stream`, weights swapped under traffic.

In: `Opener`, which knows how MODEL names become engines. A swap to an adapter of the loaded base happens in place (running answers end on
the old weights, new ones wait a moment); any other swap opens the new model beside the old one and lets the old one's answers end.

Example:
    >>> backend = BuiltinBackend("run://arith@best", "arith", opener, settings); await backend.start()
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

from policyloop.api.replies import Token
from policyloop.engine import Delta, Request
from policyloop.errors import BadInput, Conflict, NotFound, Unavailable
from policyloop.serve import Ask, Content, Load, Opened, Opener, Piece, Ready, ServedRenderer, ServeSettings
from policyloop.types import Prompt, SamplingParams

log = logging.getLogger(__name__)
WARM_TOKENS = 4
ANY_LENGTH = 1 << 40  # `_limit` says it better
UID = "api"  # a request's seed alone decides its random numbers


class BuiltinBackend:
    honours: frozenset[str] = frozenset()

    def __init__(self, model: str, name: str, opener: Opener, settings: ServeSettings) -> None:
        self.model, self.name, self.opener, self.settings = model, name, opener, settings
        self._opened: Opened | None = None
        self._adapters: dict[str, Opened] = {}
        self._old: set[asyncio.Task[None]] = set()
        self._swapping = asyncio.Lock()
        self._tokenizer = ThreadPoolExecutor(
            1, "policyloop-tokenizer"
        )  # one: long prompts wait for each other, nobody else for them

    @property
    def now(self) -> Opened:
        assert self._opened is not None, "start() has not run"
        return self._opened

    @property
    def defaults(self) -> Mapping[str, Any]:
        return self.now.sampling

    @property
    def chat(self) -> bool:
        return self.now.renderer.chat

    async def start(self) -> None:
        self._opened = await asyncio.to_thread(self._open, self.model)

    def models(self) -> Mapping[str, str]:
        if self._opened is None:
            return {self.name: "none"}
        named = {self.name: self._opened, **self._adapters}
        return {name: opened.engine.status().version for name, opened in named.items()}

    async def ready(self, ask: Ask) -> Ready:
        opened = self._of(ask)
        loop = asyncio.get_running_loop()
        ids = await loop.run_in_executor(self._tokenizer, _ids, opened.renderer, ask.content)
        limit = _limit(ask.params.max_new_tokens, self.settings.max_new_tokens, len(ids), opened.renderer.context)
        request = Request(UID, ids, replace(ask.params, max_new_tokens=limit), client=ask.client, deadline=ask.deadline)
        deltas = cast(AsyncGenerator[Delta, None], opened.engine.stream(request))  # checks it; nothing runs before it is read
        return Ready(ask, ids, limit, lambda: self._pieces(opened, deltas, ask), lambda: len(ids))

    def _of(self, ask: Ask) -> Opened:
        found = self._adapters.get(ask.adapter) if ask.adapter else self.now
        if found is None:
            raise NotFound(f"model {ask.adapter} was just removed", ", ".join(self.models()), "model")
        return found

    async def _pieces(self, opened: Opened, deltas: AsyncGenerator[Delta, None], ask: Ask) -> AsyncGenerator[Piece, None]:
        """A swap may close the engine between `ready` and here: the new one answers then."""
        texts = [opened.renderer.stream() for _ in range(ask.params.n)] if ask.wants_logprobs else []
        begun = False
        try:
            async for d in deltas:
                begun = True
                tokens = None
                if ask.wants_logprobs:
                    tokens = tuple(Token(texts[d.sample].push([i]), p) for i, p in zip(d.token_ids, d.logprobs, strict=True))
                yield Piece(d.sample, d.text, d.token_ids, d.logprobs, d.finish_reason, d.version, tokens)
        except Unavailable:
            if begun or self._of(ask) is opened:
                raise
            async with contextlib.aclosing((await self.ready(ask)).pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            await deltas.aclose()

    def load(self) -> Load:
        if self._opened is None:
            return Load()
        every = [opened.engine.status() for opened in (self._opened, *self._adapters.values())]
        used, found = max(s.kv_used_ratio for s in every), sum(s.prefix_tokens for s in every)
        return Load(sum(s.running for s in every), sum(s.waiting for s in every), used, found)

    def beat_age_s(self) -> float:
        if self._opened is None:
            return 0.0
        return max(opened.engine.status().heartbeat_age_s for opened in (self._opened, *self._adapters.values()))

    # --- weights ------------------------------------------------------------------------------------------------------------

    async def swap(self, model: str) -> str:
        """One at a time; a second one meanwhile is refused. Errors: those of loading; the old weights stay then."""
        if self._swapping.locked():
            raise Conflict("a swap is under way", "one after it")
        async with self._swapping:
            return await asyncio.shield(asyncio.create_task(self._swap(model)))

    async def _swap(self, model: str) -> str:
        engine = self.now.engine
        weights = await asyncio.to_thread(self.opener.weights, model, engine.status().base)
        if weights is not None:
            return (await asyncio.to_thread(engine.publish, weights)).version
        fresh = await asyncio.to_thread(self._open, model)
        old, self._opened = self._opened, fresh
        if old is not None:
            self._retire(old)
        return fresh.engine.status().version

    def _open(self, model: str) -> Opened:
        """Loaded and warm: the first answer of a fresh model pays for allocations that nobody should wait for."""
        opened = self.opener.open(model)
        ids = _ids(opened.renderer, "1 2 3")
        params = SamplingParams(max_new_tokens=WARM_TOKENS, temperature=0.0, ignore_eos=True)
        opened.engine.run([Request("warm-up", ids, params)])
        return opened

    async def add_adapter(self, name: str, model: str) -> str:
        """An adapter of the loaded base under a name of its own: a model of its own beside the base. Errors: Conflict, BadInput."""
        if name in self.models():
            raise Conflict(f"{name} is loaded", "another name, or DELETE it first")
        base = self.now.engine.status().base
        if await asyncio.to_thread(self.opener.weights, model, base) is None:
            raise BadInput(f"{model} is no adapter of the base that is loaded", "a LoRA adapter of it", "model")
        opened = await asyncio.to_thread(self._open, model)
        self._adapters[name] = opened
        return opened.engine.status().version

    async def remove_adapter(self, name: str) -> None:
        if name not in self._adapters:
            raise NotFound(f"no adapter {name}", ", ".join(self._adapters) or "none are loaded", "name")
        self._retire(self._adapters.pop(name))

    def _retire(self, opened: Opened) -> None:
        """Its answers may end."""
        task = asyncio.create_task(asyncio.to_thread(opened.engine.close, self.settings.deadline_s))
        self._old.add(task)
        task.add_done_callback(self._old.discard)

    async def close(self, drain_s: float) -> None:
        for opened in (self._opened, *self._adapters.values()):
            if opened is not None:
                await asyncio.to_thread(opened.engine.close, drain_s)
        with contextlib.suppress(RuntimeError):
            self._tokenizer.shutdown(wait=False, cancel_futures=True)


def _ids(renderer: ServedRenderer, content: Content) -> tuple[int, ...]:
    """A prompt's ids. Control tokens come from the template alone; a client that sends ids decides them itself.

    Without a chat template one user message is text as it is; more than that has no meaning. Errors: BadInput."""
    if isinstance(content, str):
        if not content:
            raise BadInput("the prompt is empty", "at least one character", "prompt")
        return renderer.prompt_ids(Prompt("request", "serve", text=content), ANY_LENGTH)
    if all(isinstance(x, int) for x in content):
        return tuple(x for x in content if isinstance(x, int))
    messages = tuple(m for m in content if not isinstance(m, int))
    if renderer.chat:
        return renderer.prompt_ids(Prompt("request", "serve", messages=messages), ANY_LENGTH)
    if len(messages) != 1 or messages[0].role != "user":
        raise BadInput("this model has no chat template", "one user message, or /v1/completions", "messages")
    return _ids(renderer, messages[0].content)


def _limit(asked: int, default: int, prompt: int, context: int | None) -> int:
    """How many tokens an answer may have. Errors: BadInput where prompt and answer do not fit the model."""
    room = (context or 1 << 30) - prompt
    if prompt == 0:
        raise BadInput("the prompt is empty", "at least one token", "prompt")
    if room < 1:
        raise BadInput(f"the prompt has {prompt} tokens", f"at most {(context or 0) - 1}, so that an answer fits", "prompt")
    if asked > room:
        raise BadInput(f"max_tokens {asked} after a prompt of {prompt} tokens", f"at most {room}", "max_tokens")
    return asked or min(default, room)
