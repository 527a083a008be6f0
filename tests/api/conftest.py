"""A small application with one route per scope, and a client without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI

from policyloop.api.app import Edge, make_app, needs
from policyloop.api.keys import Key, KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.api.schema import ChatBody, extras
from policyloop.errors import Overloaded
from policyloop.monitor.metrics import SERVING

Infer = Annotated[Key, Depends(needs("infer"))]
Admin = Annotated[Key, Depends(needs("admin"))]


def small_app(edge: Edge) -> FastAPI:
    app = make_app("small", edge)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, key: Infer) -> dict[str, object]:
        edge.quotas.request(key)
        return {"extras": extras(body), "key": key.name}

    @app.post("/admin/now")
    async def now(key: Admin) -> dict[str, str]:
        return {"key": key.name}

    @app.get("/full")
    async def full() -> None:
        raise Overloaded("the queue is full", retry_after_s=2.2)

    @app.get("/bug")
    async def bug() -> None:
        raise RuntimeError("secret inner detail")

    return app


@pytest.fixture
def edge(tmp_path: Path) -> Edge:
    life = Lifecycle()
    life.version = lambda: "arith@3"
    life.started()
    return Edge(life, KeyFile(tmp_path / "keys.json"), Meters(SERVING), most_bytes=10_000)


@pytest.fixture
def client(edge: Edge) -> Callable[..., httpx.AsyncClient]:
    def make(token: str | None = None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(small_app(edge), raise_app_exceptions=False)
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    return make
