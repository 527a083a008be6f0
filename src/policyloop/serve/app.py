"""The two applications of a server: the public one (OpenAI API, /predict, feedback) and the admin one (swap, adapters, drain).

Example:
    >>> public, admin = applications(service)
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from policyloop.api import VERSION, header
from policyloop.api.app import GONE, make_app, needs, request_id, unless_left
from policyloop.api.keys import Key
from policyloop.api.replies import Kind, Reply
from policyloop.api.schema import ChatBody, CompletionBody, PredictBody, PredictReply, SamplingBody
from policyloop.api.sse import HEADERS, MEDIA, written
from policyloop.errors import BadInput
from policyloop.journal.feedback import FeedbackBody, accept
from policyloop.journal.writer import Journal
from policyloop.serve.service import Running, Service
from policyloop.types import Message

Infer = Annotated[Key, Depends(needs("infer"))]
Feedback = Annotated[Key, Depends(needs("feedback"))]
Admin = Annotated[Key, Depends(needs("admin"))]
Split = Callable[[str], tuple[str, str]]


class Streamed(StreamingResponse):
    """Closes its request however the stream ends, also when it never began."""

    def __init__(self, running: Running, bodies: AsyncIterator[Any]) -> None:
        super().__init__(written(bodies), headers={**HEADERS, VERSION: header(running.version)}, media_type=MEDIA)
        self.running = running

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.running.close()


def applications(service: Service, split: Split, journal: Journal | None = None) -> tuple[FastAPI, FastAPI]:
    """`split`: an answer's text to (answer, reasoning), the grader's way."""
    public = make_app("policyloop serve", service.edge, service.gauges)
    admin = make_app("policyloop serve admin", service.edge, service.gauges)
    for app in (public, admin):
        app.state.service = service
    _openai(public, service)
    _predict(public, service, split)
    _feedback(public, journal)
    _admin(admin, service)
    return public, admin


# --- public -----------------------------------------------------------------------------------------------------------------


def _openai(app: FastAPI, service: Service) -> None:
    async def chat(body: ChatBody, request: Request, key: Infer) -> Response:
        limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        content = tuple(m.plain() for m in body.messages)
        running = await service.ask(request, key, body, content, limit, body.wants_logprobs)
        return await _respond("chat", running, body, request)

    async def completions(body: CompletionBody, request: Request, key: Infer) -> Response:
        limit = 16 if body.max_tokens is None else body.max_tokens  # OpenAI's default
        running = await service.ask(request, key, body, body.one_prompt(), limit, body.wants_logprobs)
        return await _respond("text", running, body, request)

    async def models(key: Infer) -> dict[str, Any]:
        return {"object": "list", "data": [_model(name, version) for name, version in service.backend.models().items()]}

    async def model(name: str, key: Infer) -> dict[str, Any]:
        found = service.model(name)
        return _model(found, service.backend.models()[found])

    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_class=JSONResponse)
    app.add_api_route("/v1/completions", completions, methods=["POST"], response_class=JSONResponse)
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", model, methods=["GET"])


async def _respond(kind: Kind, running: Running, body: SamplingBody, request: Request) -> Response:
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return Streamed(running, _chunks(kind, running, usage))
    try:
        choices = await unless_left(request, running.finish())
        if choices is None:
            return Response(status_code=GONE)
        reply = Reply(kind, running.request_id, running.model, running.version).whole(choices, running.usage)
        return JSONResponse(reply, headers={VERSION: header(running.version)})
    finally:
        await running.close()


async def _chunks(kind: Kind, running: Running, usage: bool) -> AsyncIterator[dict[str, Any]]:
    begun: set[int] = set()
    reply = None
    async for piece in running.pieces():
        reply = reply or Reply(kind, running.request_id, running.model, piece.version)
        yield reply.chunk(piece.index, piece.text, piece.reason, piece.tokens, piece.index not in begun)
        begun.add(piece.index)
    if usage and reply is not None:
        yield reply.usage_chunk(running.usage)


def _model(name: str, version: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "policyloop", "version": version}


STARTED = int(time.time())


def _predict(app: FastAPI, service: Service, split: Split) -> None:
    async def predict(body: PredictBody, request: Request, key: Infer) -> Response:
        asked = SamplingBody.model_validate({})
        content = (Message("user", body.question),) if service.backend.chat else body.question
        running = await service.ask(request, key, asked, content, None, defaults={"temperature": 0.0})
        try:
            choices = await unless_left(request, running.finish())
            if choices is None:
                return Response(status_code=GONE)
            answer, reasoning = split(choices[0].text)
            reply = {"answer": answer, "reasoning": reasoning, "version": running.version, "request_id": running.request_id}
            return JSONResponse(reply, headers={VERSION: header(running.version)})
        finally:
            await running.close()

    app.add_api_route("/predict", predict, methods=["POST"], response_class=JSONResponse, response_model=PredictReply)


def _feedback(app: FastAPI, journal: Journal | None) -> None:
    def feedback(body: FeedbackBody, key: Feedback) -> dict[str, Any]:
        """In a thread: it answers once the disk has it."""
        return accept(body, key.name, journal, label=key.may("label"))

    app.add_api_route("/v1/feedback", feedback, methods=["POST"])


# --- admin ------------------------------------------------------------------------------------------------------------------


class SwapBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    model: str = Field(min_length=1, max_length=1024)


class AdapterBody(SwapBody):
    name: str = Field(min_length=1, max_length=256)


def _admin(app: FastAPI, service: Service) -> None:
    async def status(key: Admin) -> dict[str, Any]:
        load, life = service.backend.load(), service.edge.life
        return {
            "state": life.state,
            "models": dict(service.backend.models()),
            "running": load.running,
            "waiting": load.waiting,
            "kv_used_ratio": load.kv_used_ratio,
            "heartbeat_age_s": life.beat_age_s(),
        }

    async def swap(body: SwapBody, request: Request, key: Admin) -> dict[str, Any]:
        try:
            version = await service.backend.swap(body.model)
        except ValueError as problem:
            raise BadInput(str(problem), "", "model") from problem
        service.edge.meters.add("weight_swaps_total", version=version)
        return {"version": version, "request_id": request_id(request)}

    async def add_adapter(body: AdapterBody, key: Admin) -> dict[str, Any]:
        return {"name": body.name, "version": await service.backend.add_adapter(body.name, body.model)}

    async def remove_adapter(name: str, key: Admin) -> dict[str, Any]:
        await service.backend.remove_adapter(name)
        return {"name": name}

    async def drain(key: Admin) -> dict[str, Any]:
        """For preStop hooks: stops taking requests and answers when the running ones have ended."""
        return {"drained": await service.edge.life.drain(service.settings.drain_s)}

    app.add_api_route("/admin/status", status, methods=["GET"])
    app.add_api_route("/admin/swap", swap, methods=["POST"])
    app.add_api_route("/admin/adapters", add_adapter, methods=["POST"])
    app.add_api_route("/admin/adapters/{name}", remove_adapter, methods=["DELETE"])
    app.add_api_route("/admin/drain", drain, methods=["POST"])
