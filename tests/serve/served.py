"""A server in this process, in a thread of its own, behind a real port; and the tiny model with a chat template and many more words."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from policyloop.api.app import Edge
from policyloop.api.keys import KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.api.running import bound
from policyloop.evaluation.model import ModelOpener
from policyloop.models.template import PLAIN
from policyloop.models.tiny import make_tiny
from policyloop.monitor.metrics import SERVING
from policyloop.serve import Backend, ServeSettings
from policyloop.serve.app import applications
from policyloop.serve.builtin import BuiltinBackend
from policyloop.serve.server import split
from policyloop.serve.service import Service

PATIENCE_S = 60


def chat_tiny(folder: Path, seed: int = 0) -> Path:
    """The tiny model, untrained, with a template: a conversation is its lines."""
    make_tiny(folder, seed)
    (folder / "chat_template.jinja").write_text(PLAIN)
    return folder


class Served:
    """`with Served(model) as server`: `server.url`, `server.ask(...)`, `server.records` (the journal's rows)."""

    def __init__(
        self,
        model: Path | str,
        *,
        keys: Path | None = None,
        options: Mapping[str, Any] | None = None,
        backend: Callable[[ServeSettings], Backend] | None = None,
        **settings: Any,
    ) -> None:
        self.settings = ServeSettings(**settings)
        self.records: list[Mapping[str, Any]] = []
        opener = ModelOpener("fp32", options=options)
        self.backend = backend(self.settings) if backend else BuiltinBackend(str(model), "tiny", opener, self.settings)
        self.edge = Edge(Lifecycle(), KeyFile(keys), Meters(SERVING))
        self.edge.life.version = lambda: next(iter(self.backend.models().values()))
        self.edge.life.beat_age_s = self.backend.beat_age_s
        self.service = Service(self.backend, self.edge, self.settings, self.records.append)
        self.apps = applications(self.service, split)
        self.loop = asyncio.new_event_loop()

    def __enter__(self) -> Served:
        sockets = [bound("127.0.0.1", 0) for _ in self.apps]
        self.url, self.admin_url = (f"http://127.0.0.1:{s.getsockname()[1]}" for s in sockets)
        configs = [uvicorn.Config(app, log_level="error", lifespan="off") for app in self.apps]
        self.servers = [uvicorn.Server(config) for config in configs]

        async def work() -> None:
            await self.backend.start()
            self.edge.life.started()
            await asyncio.gather(*(one.serve([sock]) for one, sock in zip(self.servers, sockets, strict=True)))
            await self.backend.close(0)

        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(work(),), daemon=True)
        self.thread.start()
        self.until(lambda: all(one.started for one in self.servers))
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()
        for one in self.servers:
            one.should_exit = True
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        self.loop.close()

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end and self.thread.is_alive()
            time.sleep(0.005)

    def ask(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        if body is None:
            return self.http.get(path, headers=headers)
        return self.http.post(path, json=body, headers=headers)

    def text(self, prompt: str, **more: Any) -> str:
        return self.ask("/v1/completions", {"prompt": prompt, **more}).json()["choices"][0]["text"]

    def events(self, path: str, body: Any) -> list[Any]:
        """What a stream held, `[DONE]` as text."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as reply:
            lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def idle(self) -> bool:
        load = self.backend.load()
        return self.edge.life.running == load.running == load.waiting == 0
