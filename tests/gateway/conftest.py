"""Real HTTP on loopback: small OpenAI-shaped backends and whole gateways, all in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from policyloop.api.running import bound
from policyloop.gateway import BackendSettings, GatewaySettings, HealthSettings, ReleaseSettings, RouteSettings
from policyloop.gateway.server import Gateway


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """An application on a free port of loopback."""
    sock = bound("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    )
    server.capture_signals = _none  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve([sock]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class _None:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def _none() -> _None:
    return _None()


@dataclass
class Model:
    """What a backend does; change the fields while it runs."""

    version: int
    text: str = "four"
    status: int = 200
    tokens: int = 5
    delay_s: float = 0.0
    break_after: int | None = None  # chunks of a stream, then the connection is cut
    reports: bool = False  # x-policyloop-version
    seen: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0

    def app(self) -> Starlette:
        async def health(request: Request) -> Response:
            headers = {"x-policyloop-version": f"m@{self.version}"} if self.reports else {}
            return JSONResponse({}, 200 if self.status != 599 else 503, headers)

        async def chat(request: Request) -> Response:
            body = json.loads(await request.body())
            self.seen.append(
                {"session": request.headers.get("x-policyloop-session"), "id": request.headers.get("x-request-id"), **body}
            )
            try:
                await asyncio.sleep(self.delay_s)
            except asyncio.CancelledError:
                self.left += 1
                raise
            if self.status != 200:
                return JSONResponse({"error": {"message": "no"}}, self.status)
            if body.get("stream"):
                return StreamingResponse(self._events(), media_type="text/event-stream")
            message = {"role": "assistant", "content": f"{self.text} v{self.version}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse({"choices": [choice], "usage": {"completion_tokens": self.tokens, "prompt_tokens": 3}})

        return Starlette(routes=[Route("/health/ready", health), Route("/v1/chat/completions", chat, methods=["POST"])])

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            for i in range(self.tokens):
                if i == self.break_after:
                    raise ConnectionError("cut")
                yield f'data: {{"choices":[{{"index":0,"delta":{{"content":"{self.version}"}}}}]}}\n\n'.encode()
                await asyncio.sleep(self.delay_s)
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left += 1
            raise


@dataclass
class Running:
    """A gateway and a client of its two ports."""

    gateway: Gateway
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    async def ask(self, session: str | None = None, **more: Any) -> httpx.Response:
        headers = {"x-policyloop-session": session} if session else {}
        body = {"model": "m", "messages": [{"role": "user", "content": "2+2"}], **more}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def act(self, what: str, **body: Any) -> httpx.Response:
        return await self.admin.post(f"/admin/models/m/{what}", json=body)

    async def picture(self) -> dict[str, Any]:
        return (await self.admin.get("/admin/models/m")).json()


FAST = HealthSettings(interval_s=0.05, timeout_s=1.0, breaker_open_s=0.2)
RULES = ReleaseSettings(steps=(0.3, 0.5), step_min_s=0, unit_outcomes=1, watch_s=60, step_s=60)


class Town:
    """Backends and gateways over one store."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder, self.stack = folder, stack

    async def backend(self, model: Model, name: str | None = None, known: bool = True) -> BackendSettings:
        url = await self.stack.enter_async_context(listening(model.app()))
        return BackendSettings(url=url, version=model.version if known else None, model=name)

    async def gateway(self, backends: Sequence[BackendSettings], release: ReleaseSettings = RULES, **more: Any) -> Running:
        top = {k: more.pop(k) for k in ("keys", "journal", "webhooks", "poll_s") if k in more}
        route = RouteSettings(name="m", backends=tuple(backends), release=release, **{"health": FAST, **more})
        settings = GatewaySettings(models=(route,), store=str(self.folder / "store"), **{"poll_s": 0.05, **top})
        gateway = Gateway(settings)
        await gateway.start()
        gateway.life.started()
        self.stack.push_async_callback(gateway.stop)
        data = await self.stack.enter_async_context(listening(gateway.app))
        admin = await self.stack.enter_async_context(listening(gateway.admin))
        clients = [
            await self.stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20, verify=False))
            for url in (data, admin)
        ]
        return Running(gateway, *clients)


Scene = Callable[[Town], Awaitable[None]]


@pytest.fixture
def town(tmp_path: Path) -> Callable[[Scene], None]:
    """Run a scene: backends and gateways are stopped at its end, whatever happens."""

    async def play(scene: Scene) -> None:
        async with AsyncExitStack() as stack:
            await scene(Town(tmp_path, stack))

    return lambda scene: asyncio.run(asyncio.wait_for(play(scene), 60))


async def until(fine: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for what must come."""
    async with asyncio.timeout(seconds):
        while not fine():
            await asyncio.sleep(0.01)
