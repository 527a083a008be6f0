"""The service: a validated request in, pieces out; around them a place in the queue, a deadline, metrics, quotas and the journal.

Every request ends in `Running.close`, whatever happened to it: there its slot is freed, its tokens counted and its record written.

Example:
    >>> running = await service.ask(request, key, body, content, limit)
    >>> async for piece in running.pieces(): ...
    >>> await running.close()
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import Request

from policyloop.api import SESSION, printable
from policyloop.api.app import Edge, request_id
from policyloop.api.keys import Key
from policyloop.api.replies import Choice, Token, Usage
from policyloop.api.schema import SamplingBody, extras, sampling
from policyloop.errors import BadInput, NotFound, Overloaded, Unavailable
from policyloop.serve import Ask, Backend, Content, Piece, Ready, ServeSettings
from policyloop.types import FinishReason, Message

log = logging.getLogger(__name__)
DEADLINE = "x-policyloop-deadline-s"
GRACE_S = 1.0
PACE_S = 30.0  # over how much of the past the pace is measured
Record = Mapping[str, Any]
OnFinished = Callable[[Record], object]


class Pace:
    """Answers finished per second, lately; what a queue of a given length will take."""

    def __init__(self) -> None:
        self.ends: deque[float] = deque(maxlen=1000)

    def done(self, count: int) -> None:
        self.ends.extend([time.monotonic()] * count)

    def wait_s(self, waiting: int) -> float | None:
        """None while nothing has been measured."""
        now = time.monotonic()
        recent = [t for t in self.ends if now - t < PACE_S]
        if len(recent) < 2 or waiting <= 0:
            return 0.0 if waiting <= 0 else None
        return waiting * max(now - recent[0], 1e-3) / len(recent)


@dataclass(slots=True)
class Sample:
    """One answer so far."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    reason: FinishReason | None = None
    version: str = ""

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.ids += piece.token_ids
        self.logprobs += piece.logprobs
        self.tokens += piece.tokens or ()
        self.reason, self.version = piece.reason, piece.version


class Running:
    """One request on its way. `version` is that of its answer as soon as there is one."""

    def __init__(self, service: Service, ready: Ready, key: Key, route: str, model: str, session: str, began: float) -> None:
        self.service, self.ready, self.key, self.route, self.model = service, ready, key, route, model
        self.session, self.began, self.at = session, began, time.time()
        self.samples = [Sample() for _ in range(ready.ask.params.n)]
        self.first = self.last = 0.0
        self._life = service.edge.life.request()
        self._life.__enter__()
        self._pieces = ready.pieces()
        self._closed = False

    @property
    def request_id(self) -> str:
        return self.ready.ask.request_id

    @property
    def version(self) -> str:
        return next((s.version for s in self.samples if s.version), self.service.backend.models()[self.model])

    @property
    def usage(self) -> Usage:
        known = self.ready.completion_tokens()
        count = sum(len(s.ids) for s in self.samples) if known is None else known
        return Usage(self.ready.prompt_tokens(), count)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Errors: Overloaded where the deadline came before the first token, Unavailable where the engine failed or closes."""
        while (piece := await self._next()) is not None:
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.samples[piece.index].add(piece)
            if piece.reason == "error":
                raise Unavailable("the engine failed on this request", retry_after_s=1)
            if piece.reason == "abort":
                raise Unavailable("this server is shutting down", retry_after_s=5)
            if piece.reason == "deadline" and not any(s.ids or s.text for s in self.samples):
                raise Overloaded("its turn did not come within its deadline", retry_after_s=self.service.wait_s())
            yield piece

    async def _next(self) -> Piece | None:
        """The engine keeps deadlines itself; one that is stuck cannot, and nobody waits for it."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() + self.ready.ask.deadline + GRACE_S - time.monotonic()):
                return await anext(self._pieces, None)
        except TimeoutError as problem:
            raise Unavailable("there was no whole answer within the deadline", retry_after_s=5) from problem

    async def finish(self) -> list[Choice]:
        """All answers, whole."""
        async for _ in self.pieces():
            pass
        wants = self.ready.ask.wants_logprobs
        return [Choice(i, s.text, s.reason or "abort", s.tokens if wants else None) for i, s in enumerate(self.samples)]

    async def close(self) -> None:
        """Free the slot, count, write the journal. Again: nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._pieces.aclose()
        finally:
            self._life.__exit__(None, None, None)
            self.service.finished(self)


class Service:
    """`on_finished` gets one row per answer (`journal.Record`), also of clients that left; what it raises is logged and hurts nobody."""

    def __init__(self, backend: Backend, edge: Edge, settings: ServeSettings, on_finished: OnFinished | None = None) -> None:
        self.backend, self.edge, self.settings, self.on_finished = backend, edge, settings, on_finished
        self.pace = Pace()
        self.prefix_tokens = 0

    # --- in -----------------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        request: Request,
        key: Key,
        body: SamplingBody,
        content: Content,
        limit: int | None,
        wants_logprobs: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> Running:
        """Everything that can be refused is refused here. `defaults`: sampling where neither request nor model says anything."""
        began = time.monotonic()
        try:
            self.edge.life.accept()
            model = self.model(body.model)
            key.need("infer", model)
            self.edge.quotas.request(key)
            params = sampling(body, {**(defaults or {}), **self.backend.defaults}, limit or 0)
            asked = extras(body)
            if unable := sorted(set(asked) - self.backend.honours):
                raise BadInput(
                    f"{unable[0]} is not supported by the {self.settings.engine} engine", "the request without it", unable[0]
                )
            adapter = "" if model == next(iter(self.backend.models())) else model
            deadline = began + self._deadline_s(request)
            ask = Ask(request_id(request), key.name, content, params, deadline, wants_logprobs, asked, adapter)
            ready = await self.backend.ready(ask)
            self.admit(params.n, deadline - began)
        except (Overloaded, Unavailable) as problem:
            self.edge.meters.add(
                "requests_refused_total", reason="overloaded" if isinstance(problem, Overloaded) else "unavailable"
            )
            raise
        session = printable(request.headers.get(SESSION) or body.user or "")
        return Running(self, ready, key, request.url.path, model, session, began)

    def model(self, asked: str | None) -> str:
        """The served name for what a request calls its model: `arith@3` is asked for as arith@3 or as arith, which is what a
        gateway's clients call it. Errors: NotFound.
        """
        models = self.backend.models()
        if asked is None:
            return next(iter(models))
        for name, version in models.items():
            if asked in (name, version):
                return name
        for name in models:
            if "@" in name and asked == name.partition("@")[0]:
                return name
        raise NotFound(f"no model {printable(asked)}", ", ".join(models), "model")

    def admit(self, answers: int, deadline_s: float) -> None:
        """A place in the queue. Errors: Overloaded where it is full, or where the wait would outlast the deadline."""
        waiting, most = self.backend.load().waiting, self.settings.max_waiting
        if waiting and waiting + answers > most:
            raise Overloaded(
                f"{waiting} answers are waiting", f"{most} at most", retry_after_s=self.pace.wait_s(waiting + answers - most)
            )
        wait_s = self.pace.wait_s(waiting)
        if wait_s is not None and wait_s > deadline_s:
            raise Overloaded(
                f"the queue takes {wait_s:.0f} s, longer than the {deadline_s:g} s of this request",
                retry_after_s=wait_s - deadline_s,
            )

    def wait_s(self) -> float | None:
        return self.pace.wait_s(self.backend.load().waiting)

    def _deadline_s(self, request: Request) -> float:
        given = request.headers.get(DEADLINE)
        if given is None:
            return self.settings.deadline_s
        try:
            seconds = float(given)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < math.inf:
            raise BadInput(f"{DEADLINE} {printable(given, 40)}", "seconds above 0", DEADLINE)
        return min(seconds, self.settings.deadline_s)

    # --- out ----------------------------------------------------------------------------------------------------------------

    def finished(self, running: Running) -> None:
        meters, usage, version = self.edge.meters, running.usage, running.version
        took = time.monotonic() - running.began
        self.edge.quotas.tokens(running.key, usage.prompt_tokens + usage.completion_tokens)
        self.pace.done(sum(s.reason is not None for s in running.samples))
        meters.add("prompt_tokens_total", usage.prompt_tokens, version=version)
        meters.add("generated_tokens_total", usage.completion_tokens, version=version)
        meters.observe("request_duration_seconds", took, route=running.route)
        if running.first:
            meters.observe("time_to_first_token_seconds", running.first - running.began, route=running.route)
        if (most := max(len(s.ids) for s in running.samples)) > 1 and running.last > running.first:
            meters.observe("time_per_output_token_seconds", (running.last - running.first) / (most - 1), route=running.route)
        for sample in running.samples:
            meters.add("answers_total", reason=sample.reason or "abort")
        if self.on_finished is not None:
            for index in range(len(running.samples)):
                try:
                    self.on_finished(self._record(running, index, took))
                except Exception:
                    log.exception("the journal of request %s could not be written", running.request_id)

    def _record(self, running: Running, index: int, took: float) -> Record:
        """A row for the journal. Answers after the first have their number behind the request's id."""
        sample, ask = running.samples[index], running.ready.ask
        content = ask.content
        messages = [asdict(m) for m in content if isinstance(m, Message)] if isinstance(content, tuple) else []
        return {
            "request_id": running.request_id if index == 0 else f"{running.request_id}.{index}",
            "at": running.at,
            "key": running.key.name,
            "session": running.session,
            "model": running.model,
            "version": sample.version or running.version,
            "prompt": content if isinstance(content, str) else messages,
            "text": sample.text,
            "prompt_token_ids": list(running.ready.prompt_token_ids),
            "token_ids": list(sample.ids),
            "logprobs": list(sample.logprobs) if sample.ids else [],
            "tokens": len(sample.ids) or running.usage.completion_tokens,
            "sampling": {**asdict(ask.params), "max_new_tokens": running.ready.max_new_tokens, "logprobs": True},
            "finish_reason": sample.reason or "abort",
            "latency_s": took,
            "redacted": False,
            "source": "serve",
        }

    def gauges(self) -> None:
        """Bring gauges up to date; called when /metrics is read."""
        load, meters = self.backend.load(), self.edge.meters
        meters.set("requests_running", load.running)
        meters.set("requests_waiting", load.waiting)
        meters.set("kv_cache_usage_ratio", load.kv_used_ratio)
        meters.add("prefix_tokens_total", max(0, load.prefix_tokens - self.prefix_tokens))
        self.prefix_tokens = load.prefix_tokens
