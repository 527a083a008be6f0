"""The data path: one request in, one backend's answer out, and what it says about the version that made it.

    POST /v1/chat/completions · /v1/completions · /predict        model `name`, `name@alias` or `name@3`
    key and quota -> route -> session -> arm -> backend -> (another one, before the first byte) -> bytes as they come

A session is the header x-policyloop-session, else the body's `user` (under the caller's key), else the request itself. A stream that breaks
off ends in an error event; a client that leaves frees the backend's slot.

Example:
    >>> proxy = Proxy(desks, edge, Upstream())
    >>> app.add_route("/v1/chat/completions", proxy.answer, methods=["POST"])
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from policyloop.api import SESSION, VERSION, printable
from policyloop.api.app import Edge, bearer, request_id, unless_left
from policyloop.api.faults import error
from policyloop.api.keys import Key
from policyloop.api.sse import HEADERS, MEDIA, event
from policyloop.errors import BadInput, NotFound, Overloaded, Problem, Unavailable
from policyloop.gateway.answers import Answer
from policyloop.gateway.backends import Backend
from policyloop.gateway.balance import point
from policyloop.gateway.desk import Desk, Pick
from policyloop.gateway.upstream import PATIENT, STATUS, Failed, Reply, Upstream
from policyloop.serve.server import split

MOST_SHADOWS = 64
PREDICT = "/predict"
PASSED_ON = ("content-type", "retry-after", "openai-processing-ms")


@dataclass
class Call:
    """One request on its way."""

    desk: Desk
    key: Key
    path: str
    body: bytes
    tree: Mapping[str, Any]
    session: str | None  # None: the request stands alone
    id: str
    pick: Pick
    began: float
    headers: Mapping[str, str]
    first: float | None = None
    status: int = 0
    version: str = ""
    source: str = "serve"
    answer: Answer = field(default_factory=Answer)

    @property
    def unit(self) -> str:
        return self.session or self.id

    @property
    def alone(self) -> bool:
        return self.session is None

    @property
    def stream(self) -> bool:
        return self.tree.get("stream") is True


Done = Callable[[Call], None]


class Proxy:
    """`finished` is told of every answered request: journal and verifier listen there."""

    def __init__(self, desks: Mapping[str, Desk], edge: Edge, upstream: Upstream, finished: Done = lambda call: None) -> None:
        self.desks, self.edge, self.upstream, self.finished = desks, edge, upstream, finished
        self.reads_text = False  # whether somebody wants the answers' text
        self.pass_keys = edge.keys.path is None  # without keys of our own the client's one is for the backend
        self._shadows: set[asyncio.Task[None]] = set()

    # --- in -----------------------------------------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response:
        key = self.edge.keys.find(bearer(request))
        body = await request.body()
        call = self.call(request, key, body)
        desk = call.desk
        key.need("infer", desk.name)
        self._admit(call)
        self.edge.life.accept()
        self.edge.life.running += 1
        desk.running += 1
        begun: Response | None = None
        try:
            begun = await unless_left(request, self._begin(call))
            if begun is None:
                return Response(status_code=499)
            return begun
        except Problem as problem:
            self._count(call, problem.http_status)
            raise
        finally:
            if not isinstance(begun, StreamingResponse):
                self._leave(call)

    def call(self, request: Request, key: Key, body: bytes) -> Call:
        """Errors: BadInput, NotFound."""
        try:
            tree = json.loads(body)
        except ValueError:
            tree = None
        if not isinstance(tree, dict):
            raise BadInput("the body is no JSON object", "a JSON object in UTF-8")
        desk, which = self._desk(tree.get("model"))
        session = self._session(request.headers.get(SESSION), tree, key)
        identity = request_id(request)
        pick = desk.pinned(which) if which else desk.arm(session or identity)
        headers = {"content-type": "application/json", "x-request-id": identity, "accept-encoding": "identity"}
        if session is not None:
            headers[SESSION] = printable(session, 128).encode("ascii", "replace").decode()
        for name in ("traceparent", "accept", *(["authorization"] if self.pass_keys else [])):
            if name in request.headers:
                headers[name] = request.headers[name]
        return Call(desk, key, request.url.path, body, tree, session, identity, pick, time.monotonic(), headers)

    def _desk(self, model: Any) -> tuple[Desk, str]:
        if model is None and len(self.desks) == 1:
            return next(iter(self.desks.values())), ""
        name, _, which = model.partition("@") if isinstance(model, str) else ("", "", "")
        if name not in self.desks:
            raise NotFound(f"no model {printable(str(model), 60)}", ", ".join(self.desks), "model")
        return self.desks[name], which

    def _session(self, header: str | None, tree: Mapping[str, Any], key: Key) -> str | None:
        given = header or tree.get("user")
        return f"{key.name}/{given}" if isinstance(given, str) and given else None

    def _admit(self, call: Call) -> None:
        """Errors: Overloaded."""
        desk = call.desk
        full = desk.running >= desk.route.max_running
        try:
            if full:
                raise Overloaded(f"{desk.name}: {desk.running} requests are running", "fewer at once", retry_after_s=desk.busy_s)
            for counted in _counted(call):
                self.edge.quotas.request(counted)
        except Overloaded:
            self.edge.meters.add("gateway_refused_total", route=desk.name, reason="full" if full else "quota")
            self._count(call, 429)
            raise

    # --- out ----------------------------------------------------------------------------------------------------------------

    async def _begin(self, call: Call) -> Response:
        """An answer that has begun, from the first backend that gives one."""
        self._shadow(call)
        reply, backend = await self._reach(call)
        call.version = reply.version or call.desk.version_name(call.pick.version)
        headers = {name: reply.headers[name] for name in PASSED_ON if name in reply.headers} | {VERSION: call.version}
        if call.stream and reply.status == 200:
            chunks = self._streamed(call, reply, backend)
            return StreamingResponse(_led_by(await anext(chunks), chunks), 200, HEADERS | headers, MEDIA)
        try:
            content = await reply.body()
        except BaseException as problem:
            reply.close()
            broken = isinstance(problem, Failed)
            backend.ended(False if broken else None, time.monotonic())
            if broken:
                self._failed(call, call.pick, str(problem))
                raise Unavailable("the backend broke off its answer", retry_after_s=call.desk.busy_s) from problem
            raise
        reply.close()
        backend.ended(_good(reply.status), time.monotonic())
        call.answer.whole(content)
        if call.path == PREDICT and backend.only_openai and reply.status == 200:
            content = _predicted(call)
        self._finish(call, reply.status)
        return Response(content, reply.status, headers)

    async def _reach(self, call: Call) -> tuple[Reply, Backend]:
        """Errors: Unavailable, with the seconds after which asking again makes sense."""
        desk, tried, once, reason = call.desk, list[Backend](), False, ""
        for attempt in range(desk.route.retries + 1):
            backend = desk.backend(call.pick.version, call.session, time.monotonic(), tried)
            if backend is None and not call.pick.main and call.pick.release:
                if not tried:
                    self._failed(call, call.pick, "no_backend")
                call.pick = desk.stable_instead(call.pick)
                backend = desk.backend(call.pick.version, call.session, time.monotonic(), tried)
            if backend is None:
                break
            if attempt:
                self.edge.meters.add("gateway_retries_total", route=desk.name, reason=reason)
            tried.append(backend)
            reply, reason, again = await self._try(call, backend)
            if reply is not None:
                return reply, backend
            if again == "no" or (again == "once" and once) or attempt == desk.route.retries:
                raise Unavailable(f"{desk.version_name(call.pick.version)}: {reason}", retry_after_s=desk.busy_s)
            once = once or again == "once"
        raise desk.nobody(call.pick.version, time.monotonic())

    async def _try(self, call: Call, backend: Backend) -> tuple[Reply | None, str, str]:
        """One attempt. No reply: why, and whether another backend may be asked."""
        backend.began(time.monotonic())
        fine: bool | None = None
        try:
            reply = await self._send(call, backend)
            again = STATUS.get(reply.status)
            if again is None:
                return reply, "", "no"
            fine = None if reply.status in PATIENT else False
            reply.close()
            reason = f"status_{reply.status}"
        except Failed as problem:
            fine, reason, again = False, problem.reason, problem.again
        except BaseException:  # the client has gone
            backend.ended(None, time.monotonic())
            raise
        backend.ended(fine, time.monotonic())
        self._failed(call, call.pick, reason)
        return None, reason, again

    async def _send(self, call: Call, backend: Backend) -> Reply:
        """As the backend understands it: one that has no /predict is asked by chat. Errors: Failed."""
        wait = call.desk.route.timeout_s
        if call.path == PREDICT and not backend.only_openai:
            reply = await self.upstream.send(backend, call.path, _renamed(call, backend), call.headers, wait)
            if reply.status != 404:
                return reply
            reply.close()
            backend.only_openai = True
        if call.path != PREDICT:
            return await self.upstream.send(backend, call.path, _renamed(call, backend), call.headers, wait)
        question = [{"role": "user", "content": call.tree.get("question")}]
        chat = {"model": backend.settings.model or call.desk.name, "messages": question, "temperature": 0}
        return await self.upstream.send(backend, "/v1/chat/completions", json.dumps(chat).encode(), call.headers, wait)

    async def _streamed(self, call: Call, reply: Reply, backend: Backend) -> AsyncIterator[bytes]:
        """The backend's bytes; without its [DONE] an error event and none of ours."""
        ok: bool | None = None
        status, answer = 200, call.answer
        answer.wants_text = self.reads_text
        try:
            async for chunk in reply.chunks():
                if call.first is None:
                    call.first = time.monotonic()
                answer.events(chunk)
                yield chunk
            ok = answer.finish == "done"
            if not ok:
                raise Failed("no_done", "no")
        except Failed as problem:
            ok, status = False, 502
            self._failed(call, call.pick, problem.reason)
            self.edge.meters.add("gateway_broken_streams_total", route=call.desk.name, version=call.version)
            if answer.finish != "error":
                yield (b"\n\n" if answer.tail else b"") + event(error(503, "the backend broke off its answer", "unavailable")[1])
        finally:
            reply.close()
            backend.ended(ok, time.monotonic())
            self._leave(call)
            if ok is not None:
                self._finish(call, status)

    # --- what it says -------------------------------------------------------------------------------------------------------

    def _failed(self, call: Call, pick: Pick, reason: str) -> None:
        version = call.desk.version_name(pick.version)
        self.edge.meters.add("gateway_errors_total", route=call.desk.name, version=version, reason=reason)
        call.desk.saw(pick, call.unit, "errors", 0.0, time.monotonic(), call.alone)

    def _finish(self, call: Call, status: int) -> None:
        """An answer is out: figures, evidence, and whoever listens."""
        desk, now = call.desk, time.monotonic()
        call.status = status
        desk.took(now - call.began)
        self._count(call, status)
        desk.got[call.pick.version] = desk.got.get(call.pick.version, 0) + 1
        arm = "main" if call.pick.main else "other"
        self.edge.meters.observe("gateway_request_duration_seconds", now - call.began, route=desk.name, arm=arm)
        self.edge.meters.observe("gateway_time_to_first_byte_seconds", (call.first or now) - call.began, route=desk.name, arm=arm)
        if status < 400:
            self._good_answer(call, now)

    def _good_answer(self, call: Call, now: float) -> None:
        desk = call.desk
        self.edge.meters.add("gateway_tokens_total", call.answer.tokens, route=desk.name, version=call.version)
        for counted in _counted(call):
            self.edge.quotas.tokens(counted, call.answer.tokens)
        self._saw_good(call, now)
        desk.remember(call.id, call.pick, call.unit, call.key.name)

    def _saw_good(self, call: Call, now: float) -> None:
        """The outcomes of an answer without an error; whoever listens sees it too."""
        desk, rules, tokens = call.desk, call.desk.route.release.signals, call.answer.tokens
        desk.saw(call.pick, call.unit, "errors", 1.0, now, call.alone)
        if rules.slow is not None and rules.slow.limit is not None:
            desk.saw(call.pick, call.unit, "slow", float(now - call.began <= rules.slow.limit), now, call.alone)
        if rules.long is not None and rules.long.limit is not None and tokens:
            desk.saw(call.pick, call.unit, "long", float(tokens <= rules.long.limit), now, call.alone)
        self.finished(call)

    def _count(self, call: Call, status: int) -> None:
        version = call.version or call.desk.version_name(call.pick.version)
        self.edge.meters.add("gateway_requests_total", route=call.desk.name, code=str(status), version=version)

    def _leave(self, call: Call) -> None:
        call.desk.running -= 1
        self.edge.life.running -= 1

    # --- shadow -------------------------------------------------------------------------------------------------------------

    def _shadow(self, call: Call) -> None:
        """A copy for the candidate whose answer nobody gets; skipped when many are out already."""
        r = call.desk.routing
        if (
            r.shadow <= 0
            or r.other is None
            or len(self._shadows) >= MOST_SHADOWS
            or point("shadow", r.release, call.id) >= r.shadow
        ):
            return
        tree = {**call.tree, "stream": False}
        tree.pop("stream_options", None)
        pick = Pick(r.other, r.release, r.stratum, False)
        copy = replace(
            call, pick=pick, tree=tree, body=json.dumps(tree).encode(), source="shadow", answer=Answer(), began=time.monotonic()
        )
        task = asyncio.create_task(self._shadowed(copy))
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)

    async def _shadowed(self, call: Call) -> None:
        backend = call.desk.backend(call.pick.version, call.session, time.monotonic())
        if backend is None:
            self._failed(call, call.pick, "no_backend")
            return
        reply, _, _ = await self._try(call, backend)
        if reply is None:
            self.edge.meters.add("gateway_shadow_total", route=call.desk.name, code="failed")
            return
        try:
            content = await reply.body()
            backend.ended(_good(reply.status), time.monotonic())
        except Failed as problem:
            backend.ended(False, time.monotonic())
            self._failed(call, call.pick, problem.reason)
            return
        finally:
            reply.close()
        self.edge.meters.add("gateway_shadow_total", route=call.desk.name, code=str(reply.status))
        call.status, call.version = reply.status, reply.version or call.desk.version_name(call.pick.version)
        if reply.status < 400:
            call.answer.whole(content)
            self._saw_good(call, time.monotonic())


async def _led_by(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream that has begun: whatever becomes of the client, its end is reached."""
    yield first
    async for chunk in rest:
        yield chunk


def _good(status: int) -> bool | None:
    """What a status says of the backend; the client's own mistakes say nothing."""
    return True if status < 400 else None if status < 500 else False


def _predicted(call: Call) -> bytes:
    """A chat's answer as /predict gives it."""
    answer, reasoning = split(call.answer.text)
    return json.dumps(
        {"answer": answer, "reasoning": reasoning, "version": call.version, "request_id": call.id}, ensure_ascii=False
    ).encode()


def _renamed(call: Call, backend: Backend) -> bytes:
    """The body with the model's name as this backend knows it."""
    name = backend.settings.model or (call.desk.name if "@" in str(call.tree.get("model", "")) else None)
    return call.body if name is None else json.dumps({**call.tree, "model": name}).encode()


def _counted(call: Call) -> list[Key]:
    """Whose limits a request counts for: the key's own, and the route's for this key."""
    quota = call.desk.route.quota
    if quota.requests_per_minute is None and quota.tokens_per_minute is None:
        return [call.key]
    name = f"{call.key.name}/{call.desk.name}"
    return [
        call.key,
        replace(call.key, name=name, requests_per_minute=quota.requests_per_minute, tokens_per_minute=quota.tokens_per_minute),
    ]
