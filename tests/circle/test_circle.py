"""The circle: v1 serves, people say what was wrong, v2 (made worse) is caught, v3 (better) is promoted. Real tiny models, real store, real HTTP.

v1 and v3 are two checkpoints of one supervised run, an early and a late one; v2 has random weights.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from policyloop.api.app import Edge
from policyloop.api.keys import KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.api.running import bound
from policyloop.collect.trace import trace
from policyloop.evaluation.model import ModelOpener
from policyloop.gateway import (
    BackendSettings,
    GatewaySettings,
    HealthSettings,
    ReleaseSettings,
    RouteSettings,
    SignalSettings,
    SignalsSettings,
)
from policyloop.gateway.server import Gateway
from policyloop.journal import JournalSettings
from policyloop.models.tiny import make_tiny
from policyloop.monitor.metrics import SERVING
from policyloop.recipe import load
from policyloop.rounds import Improver, ImproveSettings, TrainStage
from policyloop.run import start
from policyloop.serve import ServeSettings
from policyloop.serve.app import applications
from policyloop.serve.builtin import BuiltinBackend
from policyloop.serve.server import split
from policyloop.serve.service import Service
from policyloop.store import Store, Version, open_store
from policyloop.store.moves import promote
from policyloop.tasks import load_task
from policyloop.training.register import bring_in, register

EARLY, LATE = 180, 240
SFT = f"""
model: {{base_model_path: tiny, lora: null, template: plain}}
data: {{task: tiny_arithmetic, options: {{terms: 3, demonstrations: 6000, restate: 0.0, concise: 1.0, slip: 0.0}}}}
rl_strategy: {{type: sft}}
training: {{steps: {LATE}, batch_size: 32, lr: 4e-3, lr_schedule: linear, betas: [0.9, 0.95], save_steps: 60, keep_last: 9, threads: 1, precision: fp32}}
rollout: {{max_new_tokens: 24, samples: 0}}
evaluation: {{every: 0, prompts: 160}}
"""
SIGNALS = SignalsSettings(
    errors=SignalSettings(margin=0.2), slow=None, long=None, feedback=SignalSettings(margin=0.1), verifier=None
)
RULES = ReleaseSettings(steps=(0.5,), step_min_s=0, unit_outcomes=1, watch_s=0.5, step_s=120, signals=SIGNALS)


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    sock = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve([sock]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def served(store: Store, version: Version) -> AsyncIterator[BackendSettings]:
    """One version behind `policyloop serve`'s own application."""
    settings = ServeSettings()
    backend = BuiltinBackend(str(store.fetch(version)), "arith", ModelOpener("fp32", "plain"), settings)
    edge = Edge(Lifecycle(), KeyFile(None), Meters(SERVING))
    edge.life.version = lambda: str(version)
    edge.life.beat_age_s = backend.beat_age_s
    await backend.start()
    edge.life.started()
    try:
        async with listening(applications(Service(backend, edge, settings), split)[0]) as url:
            yield BackendSettings(url=url, version=version.number)
    finally:
        await backend.close(0.0)


class People:
    """Sessions that ask, judge what they get and say so: a thumb, and the right answer where it was wrong."""

    def __init__(self, client: httpx.AsyncClient, questions: list[tuple[str, str]]) -> None:
        self.client, self.questions, self.n = client, itertools.cycle(questions), itertools.count()
        self.got: Counter[str] = Counter()

    async def ask(self) -> str:
        (prompt, target), n = next(self.questions), next(self.n)
        body = {"model": "arith", "prompt": prompt, "max_tokens": 24, "temperature": 0, "user": f"u{n % 50}"}
        reply = await self.client.post("/v1/completions", json=body, headers={"x-policyloop-session": f"s{n}"})
        assert reply.status_code == 200, reply.text
        self.got[reply.headers["x-policyloop-version"]] += 1
        right = reply.json()["choices"][0]["text"].strip().endswith(f"#{target}")
        request = reply.headers["x-request-id"]
        await self.say(request, "thumb", "up" if right else "down", n)
        if not right:
            await self.say(request, "answer", target, n)
        return request

    async def say(self, request: str, kind: str, value: Any, n: int) -> None:
        body = {"request_id": request, "kind": kind, "value": value, "user": f"u{n % 50}"}
        assert (await self.client.post("/v1/feedback", json=body)).json()["recorded"]

    async def until(self, done: asyncio.Task[Any]) -> None:
        """Keep asking, four at a time, until something else has come to its end."""
        while not done.done():
            await asyncio.gather(*(self.ask() for _ in range(4)))


def trained(folder: Path) -> Path:
    (folder / "sft.yaml").write_text(SFT)
    return start(load(folder / "sft.yaml"), folder / "runs" / "sft", say=lambda line: None).folder


def test_the_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    began, run, store = time.monotonic(), trained(tmp_path), open_store(str(tmp_path / "store"))
    one = register(store, run, name="arith", which=str(EARLY))
    promote(store, one, by="test", reason="first", force=True)
    worse = tmp_path / "worse"
    make_tiny(worse, seed=7)
    two = bring_in(store, worse, name="arith")
    three = register(store, run, name="arith", which=str(LATE))

    async def scene() -> None:
        async with AsyncExitStack() as stack:
            backends = tuple([await stack.enter_async_context(served(store, v)) for v in (one, two, three)])
            route = RouteSettings(name="arith", backends=backends, release=RULES, health=HealthSettings(interval_s=0.1))
            journal = JournalSettings(folder=str(tmp_path / "journal"), store=store.uri, fsync="never")
            gateway = Gateway(GatewaySettings(models=(route,), store=store.uri, poll_s=0.05, journal=journal))
            await gateway.start()
            gateway.life.started()
            stack.push_async_callback(gateway.stop)
            url = await stack.enter_async_context(listening(gateway.app))
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
            questions = [(p.text or "", p.target or "") for p in load_task(load(tmp_path / "sft.yaml").data, 0).train()]
            await turn(gateway, People(client, questions[:400]))

    async def turn(gateway: Gateway, people: People) -> None:
        asked = [await people.ask() for _ in range(30)]  # v1 serves, feedback arrives
        assert set(people.got) == {"arith@1"}
        assert gateway.journal is not None
        await asyncio.to_thread(gateway.journal.flush)
        stage = TrainStage(name="sft", recipe=str(tmp_path / "sft.yaml"))
        improver = Improver(ImproveSettings(name="arith", store=store.uri, stages=(stage,), release="gateway"), lambda line: None)
        learnt = improver.curate(stage)
        datasets = store.on("datasets")
        rows = [json.loads(x) for x in datasets.read(datasets.resolve(learnt["set"]), "prompts.jsonl").splitlines()]
        found = [r for row in rows for r in row["requests"]]
        assert found and set(found) <= set(asked)  # the next training set, by request id
        assert trace(found[0], store.uri)["sets"] == [learnt["set"]]

        held, done = await gated(improver, stage, two)  # v2 is caught by the gate
        assert held["verdict"] == "HOLD" and held["ends"]
        forced = Improver(replace(improver.chosen, force_gate=True), lambda line: None)
        outcome = await released(forced, done, people)  # the gate forced open: the canary goes back by itself
        assert outcome["outcome"] == "rolled back" and store.state("arith").stable == 1
        assert 2 in store.state("arith").after.quarantined and people.got["arith@2"] > 0

        passed, done = await gated(improver, stage, three)  # v3 is better
        assert passed["verdict"] == "SHIP"
        outcome = await released(improver, done, people)
        assert outcome["outcome"] == "kept" and store.state("arith").stable == 3

    asyncio.run(asyncio.wait_for(scene(), 170))
    types = [e.type for e in store.events("arith")]
    assert types.index("gate_failed") < types.index("rolled_back") < types.index("gate_passed") < types.index("promoted", 3)
    print(f"the circle took {time.monotonic() - began:.0f} s")


async def gated(improver: Improver, stage: TrainStage, version: Version) -> tuple[dict[str, Any], dict[str, Any]]:
    done = {"stable": {"version": "arith@1"}, "register": {"version": str(version)}}
    note = await asyncio.to_thread(improver.gate, stage, done)
    return note, {**done, "gate": note}


async def released(improver: Improver, done: dict[str, Any], people: People) -> dict[str, Any]:
    """The candidate's release, with people asking all the while."""
    done = {**done, "release": await asyncio.to_thread(improver.released, done)}
    watching = asyncio.create_task(asyncio.to_thread(improver.watch, done))
    await people.until(watching)
    return await watching
