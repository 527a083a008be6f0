"""`policyloop gateway`: two ports, one process, no torch. Everything is put together here.

In: GatewaySettings. Out: a service that runs until SIGTERM has drained it.

Example:
    >>> serve(load(Path("gateway.yaml")), say=print)
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI

from policyloop.api.app import Edge, make_app, needs
from policyloop.api.keys import Key, KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.api.quotas import Quotas
from policyloop.api.running import Port, run
from policyloop.errors import BadInput
from policyloop.gateway import GatewaySettings
from policyloop.gateway.admin import make_admin
from policyloop.gateway.controller import Controller
from policyloop.gateway.desk import Desk
from policyloop.gateway.proxy import Call, Proxy
from policyloop.gateway.release import ACTIVE
from policyloop.gateway.upstream import Upstream
from policyloop.gateway.webhooks import Webhooks
from policyloop.journal import open_journal
from policyloop.journal.feedback import FeedbackBody, accept, value_of
from policyloop.monitor.metrics import GATEWAY
from policyloop.store import Store, open_store

log = logging.getLogger(__name__)
STAGES = ("idle", *ACTIVE)


class Gateway:
    """The assembled service. `app` and `admin` are its two ports; `start` and `stop` frame its loops."""

    def __init__(self, settings: GatewaySettings, store: Store | None = None) -> None:
        self.settings = settings
        self.store = store or open_store(settings.store)
        self.desks = {route.name: Desk(route) for route in settings.models}
        self.life = Lifecycle()
        keys = KeyFile(Path(settings.keys) if settings.keys else None)
        self.edge = Edge(self.life, keys, Meters(GATEWAY), Quotas(settings.limits))
        self.upstream = Upstream()
        self.controller = Controller(settings, self.store, self.desks, self.upstream)
        self.proxy = Proxy(self.desks, self.edge, self.upstream, self._finished)
        self.webhooks = Webhooks(settings.webhooks, lambda code: self.edge.meters.add("gateway_webhooks_total", code=code))
        self.verifiers = {
            name: _verifier(d.route.release.verifier) for name, d in self.desks.items() if d.route.release.signals.verifier
        }
        self.journal = open_journal(settings.journal)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._wire()
        self.app = self._app()
        self.admin = make_admin(self.controller, self.edge)

    def _wire(self) -> None:
        self.controller.told = self.webhooks.told
        self.controller.ejected = lambda b: self.edge.meters.add("gateway_ejections_total", backend=b.name)
        self.life.beat_age_s = lambda: asyncio.get_running_loop().time() - self.controller.beat
        self.life.version = lambda: ", ".join(d.version_name(d.routing.main) for d in self.desks.values())
        self.proxy.reads_text = bool(self.verifiers) or self.journal is not None

    def _app(self) -> FastAPI:
        app = make_app("policyloop gateway", self.edge, self.measure)
        for path in ("/v1/chat/completions", "/v1/completions", "/predict"):
            app.add_route(path, self.proxy.answer, methods=["POST"])
        _models(app, self.desks)

        @app.post("/v1/feedback")
        async def feedback(body: FeedbackBody, key: Annotated[Key, Depends(needs("feedback"))]) -> dict[str, Any]:
            self.edge.quotas.request(key)
            said = await asyncio.to_thread(lambda: accept(body, key.name, self.journal, label=key.may("label")))
            self._heard(body, key)
            return said

        return app

    async def start(self) -> None:
        await self.controller.start()
        self._spawn(self.controller.run())

    async def stop(self) -> None:
        for desk in self.desks.values():
            with contextlib.suppress(Exception):  # the last counts; a store that is away must not hold up the end
                await self.controller.share(desk)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.webhooks.close()
        await self.upstream.close()
        if self.journal is not None:
            await asyncio.to_thread(self.journal.close)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what answers say ---------------------------------------------------------------------------------------------------

    def _finished(self, call: Call) -> None:
        """An answer is out: write it down, verify it where the request said what is right."""
        if self.journal is not None:
            self.journal.offer(record(call))
        metadata = call.tree.get("metadata")
        target = metadata.get("target") if isinstance(metadata, dict) else None
        grade = self.verifiers.get(call.desk.name)
        if grade is not None and isinstance(target, str) and call.pick.release:
            self._spawn(self._verify(call, grade, target))

    async def _verify(self, call: Call, grade: Callable[[str, str], Any], target: str) -> None:
        try:
            right = await asyncio.to_thread(grade, call.answer.text, target)
        except Exception:  # a user's verifier must not end anything; unscored is never 0
            log.exception("verifier of %s", call.desk.name)
            return
        if right is not None:
            call.desk.saw(call.pick, call.unit, "verifier", float(right), asyncio.get_running_loop().time())

    def _heard(self, body: FeedbackBody, key: Key) -> None:
        """Feedback on an answer of the running release is a signal: of whoever asked (or may label), once per session."""
        value = opinion(body.kind, value_of(body.kind, body.value))
        for desk in self.desks.values():
            known = desk.recall(body.request_id)
            if known is not None and value is not None and (known[2] == key.name or key.may("label")):
                desk.saw(known[0], known[1], "feedback", value, asyncio.get_running_loop().time())

    def measure(self) -> None:
        """Gauges, when somebody reads them."""
        now, meters = asyncio.get_running_loop().time(), self.edge.meters
        for desk in self.desks.values():
            r = desk.routing
            for version, share in ((r.main, 1 - r.share), (r.other, r.share)):
                if version is not None:
                    meters.set("gateway_share_ratio", share, route=desk.name, version=desk.version_name(version))
            for stage in STAGES:
                meters.set("gateway_release_state", float(stage == r.state), route=desk.name, stage=stage)
            for s in self.controller.seen(desk).verdict.signals if r.release else ():
                meters.set("gateway_evidence", s.worse / s.worse_bound, route=desk.name, reason=s.signal)
            meters.set("gateway_failures", desk.state.after.failures, route=desk.name)
            meters.set("gateway_log_age_seconds", now - desk.read_at, route=desk.name)
            for b in desk.backends:
                meters.set("gateway_backend_up", float(b.usable(now)), backend=b.name)
                meters.set("gateway_requests_running", b.running, backend=b.name)


def opinion(kind: str, value: float | str) -> float | None:
    """Feedback as a good outcome in [0, 1]; texts (a right answer, an edit) are for curation."""
    if isinstance(value, str):
        return None
    return (value + 1) / 2 if kind == "thumb" else value


def record(call: Call) -> dict[str, Any]:
    """The journal's line of one answer: text, since other people's backends give no token ids."""
    tree = call.tree
    sampling = {
        k: tree[k]
        for k in ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "n", "stop")
        if k in tree
    }
    metadata = tree.get("metadata")
    return {
        **{"request_id": call.id, "key": call.key.name, "session": call.session or "", "user": tree.get("user") or ""},
        **{
            "model": call.desk.name,
            "version": call.version,
            "prompt": tree.get("messages") or tree.get("prompt") or tree.get("question") or "",
        },
        **{"text": call.answer.text, "tokens": call.answer.tokens, "sampling": sampling, "finish_reason": call.answer.reason},
        "latency_s": asyncio.get_running_loop().time() - call.began,
        "source": "canary" if call.source == "serve" and not call.pick.main else call.source,
        "target": metadata.get("target") if isinstance(metadata, dict) else None,
        "store": tree.get("store"),
    }


def _models(app: FastAPI, desks: dict[str, Desk]) -> None:
    @app.get("/v1/models")
    async def models(key: Annotated[Key, Depends(needs("infer"))]) -> dict[str, Any]:
        rows = [
            {"id": d.name, "object": "model", "created": 0, "owned_by": "policyloop", "version": d.version_name(d.routing.main)}
            for d in desks.values()
            if key.may("infer", d.name)
        ]
        return {"object": "list", "data": rows}


def _verifier(path: str) -> Callable[[str, str], Any]:
    """Errors: BadInput."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadInput(f"release.verifier = {path} ({problem})", "package.module:function", "release.verifier") from problem


def serve(settings: GatewaySettings, say: Callable[[str], None], dress: Callable[[Gateway], None] = lambda gateway: None) -> None:
    """Run until SIGTERM or SIGINT; `dress` adds to its ports what lies above this room (the console). Errors: BadInput for a port that is
    taken, StoreError."""
    gateway = Gateway(settings)
    dress(gateway)
    ports = [Port(gateway.app, settings.host, settings.port), Port(gateway.admin, settings.admin_host, settings.admin_port)]
    run(ports, gateway.life, settings.drain_s, gateway.start, gateway.stop, say)
