"""What stands around every route: request ids, a limit on bodies, keys, errors in one shape, probes, /metrics, versions in every reply.

In: an `Edge` (life, keys, quotas, meters). Out: a FastAPI application to which a service adds its routes; each asks for a scope.

Example:
    >>> app = make_app("policyloop serve", Edge(life, KeyFile(None), Meters(SERVING)))
    >>> @app.post("/v1/completions")
    ... async def completions(body: CompletionBody, key: Annotated[Key, Depends(needs("infer"))]) -> dict: ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from policyloop import __version__
from policyloop.api import REQUEST_ID, VERSION, header, new_request_id
from policyloop.api.faults import Fault, error, fault, internal, unreadable
from policyloop.api.keys import Key, KeyFile, Scope
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import TYPE, Meters
from policyloop.api.quotas import Quotas
from policyloop.errors import Problem

log = logging.getLogger(__name__)
T = TypeVar("T")
MOST_BYTES = 4 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")
GONE = 499  # the client left before there was an answer
Scopes = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scopes]]
Send = Callable[[Scopes], Awaitable[None]]
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}}}
    for status, what in (
        (400, "the request is wrong"),
        (401, "no valid key"),
        (403, "the key may not do this"),
        (404, "no such model"),
        (429, "too much at once: see Retry-After"),
        (503, "not ready, draining, or no engine: see Retry-After"),
    )
}


@dataclass(frozen=True, slots=True)
class Edge:
    life: Lifecycle
    keys: KeyFile
    meters: Meters
    quotas: Quotas = field(default_factory=Quotas)
    most_bytes: int = MOST_BYTES


def make_app(title: str, edge: Edge, before_metrics: Callable[[], None] = lambda: None) -> FastAPI:
    """`before_metrics` brings gauges up to date when somebody reads them."""
    app = FastAPI(title=title, version=__version__, responses=ERRORS, docs_url=None, redoc_url=None)
    app.state.edge = edge
    app.add_exception_handler(
        Problem, lambda request, problem: _json(fault(problem)) if isinstance(problem, Problem) else _json(internal())
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _bug)
    app.add_middleware(Envelope, edge=edge)
    _probes(app, edge, before_metrics)
    return app


def needs(scope: Scope) -> Callable[[Request], Key]:
    """A dependency: the key that asks, allowed to do this. Errors: Unauthenticated, Denied."""

    async def key(request: Request) -> Key:
        edge: Edge = request.app.state.edge
        found = edge.keys.find(bearer(request))
        found.need(scope)
        return found

    return key  # type: ignore[return-value]


def bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key")


def near(request: Request) -> bool:
    """Whether a person on this machine asks, and no web page of somebody else through their browser (by its origin, or by a name that
    it made point here)."""
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    origin = request.headers.get("origin")
    here = request.client is not None and request.client.host in LOOPBACK and host in LOOPBACK
    return here and (origin is None or urlsplit(origin).netloc == request.headers.get("host"))


def request_id(request: Request) -> str:
    return str(request.scope["state"]["request_id"])


async def unless_left(request: Request, work: Awaitable[T]) -> T | None:
    """The result, or None as soon as the client has gone; the work is cancelled then. The body must have been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


class Envelope:
    """ASGI: gives the request its id, refuses bodies that are too large, and puts id and version on whatever is answered."""

    def __init__(self, app: Callable[[Scopes, Receive, Send], Awaitable[None]], edge: Edge) -> None:
        self.app, self.edge = app, edge

    async def __call__(self, scope: Scopes, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        identity = new_request_id(given.get(REQUEST_ID))
        scope.setdefault("state", {})["request_id"] = identity
        seen, status, version = 0, 0, self.edge.life.version()

        async def named(message: Scopes) -> None:
            nonlocal status, version
            if message["type"] == "http.response.start":
                headers = list(message["headers"])
                status = message["status"]
                version = next((value.decode() for name, value in headers if name.decode() == VERSION), version)
                names = {name for name, _ in headers}
                for name, value in ((REQUEST_ID, identity), (VERSION, header(version))):
                    if name.encode() not in names:
                        headers.append((name.encode(), value.encode()))
                message = {**message, "headers": headers}
            await send(message)

        async def limited() -> Scopes:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.edge.most_bytes:
                raise HTTPException(413, f"the body has more than {self.edge.most_bytes} bytes")
            return message

        try:
            await self.app(scope, limited, named)
        finally:
            if self.edge.meters.knows("requests_total"):
                route = getattr(scope.get("route"), "path", "other")  # never what a caller made up
                self.edge.meters.add("requests_total", route=route, code=str(status or GONE), version=version)


def _json(found: Fault) -> Response:
    status, body, headers = found
    return JSONResponse(body, status, headers)


async def _invalid(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestValidationError)
    return _json(fault(unreadable(problem.errors())))


async def _http(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(problem.status_code, "bad_input")
    said = {
        404: f"no route {request.url.path}",
        405: f"{request.method} is not allowed on {request.url.path}",
        400: "the body cannot be read: it is no JSON in UTF-8",
    }
    status, body, headers = error(problem.status_code, said.get(problem.status_code, str(problem.detail)), code)
    return _json((status, body, headers | dict(problem.headers or {})))


async def _bug(request: Request, problem: Exception) -> Response:
    log.error("request %s failed", request.scope.get("state", {}).get("request_id"), exc_info=problem)
    return _json(internal())


def _probes(app: FastAPI, edge: Edge, before_metrics: Callable[[], None]) -> None:
    def probe(ask: Callable[[], tuple[bool, dict[str, Any]]]) -> Callable[[], Awaitable[Response]]:
        async def answer() -> Response:
            fine, said = ask()
            return JSONResponse(said, 200 if fine else 503, {} if fine else {"retry-after": "1"})

        return answer

    for name, ask in (("live", edge.life.live), ("startup", edge.life.startup), ("ready", edge.life.ready)):
        app.add_api_route(f"/health/{name}", probe(ask), methods=["GET"], name=f"health_{name}", response_class=JSONResponse)

    async def metrics() -> Response:
        before_metrics()
        if edge.meters.knows("heartbeat_age_seconds"):
            edge.meters.set("heartbeat_age_seconds", edge.life.beat_age_s())
        return Response(edge.meters.text(), media_type=TYPE)

    app.add_api_route("/metrics", metrics, methods=["GET"], response_class=Response)
