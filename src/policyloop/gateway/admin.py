"""The admin port: what serves, what is on trial and how it stands, and the moves a person makes. Everything a move does is one event of the log.

    GET  /admin/models · /admin/models/{name} · /admin/models/{name}/events
    POST /admin/models/{name}/release {version, strategy?, force?, reason?} · promote {version?, force?, reason?} · rollback {to?, reason?} · approve

Needs a key with scope promote, approve or admin; where the gateway has no key file, whoever reaches this port on loopback may act.

Example:
    $ curl -X POST localhost:8090/admin/models/math/rollback -H 'content-type: application/json' -d '{"reason": "wrong units"}'
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from policyloop.api.app import Edge, bearer, make_app, near
from policyloop.api.keys import Key, Scope
from policyloop.errors import Denied, No
from policyloop.gateway import release as machine
from policyloop.gateway.controller import Controller, desk_of
from policyloop.gateway.desk import Desk
from policyloop.gateway.fit import way_back
from policyloop.gateway.release import Move
from policyloop.store import After, State


class Act(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    reason: str = Field("by hand", max_length=1000)


class ReleaseBody(Act):
    version: int = Field(ge=1)
    strategy: Literal["double", "adapter", "replace"] | None = None
    force: bool = False


class PromoteBody(Act):
    version: int | None = Field(None, ge=1)
    force: bool = False


class RollbackBody(Act):
    to: int | None = Field(None, ge=1)
    quarantine: bool = True


def may(scope: Scope) -> Any:
    """A dependency: who acts, allowed to. Errors: Denied, Unauthenticated."""

    async def key(request: Request) -> Key:
        edge: Edge = request.app.state.edge
        if edge.keys.path is None:
            return _operator(request)
        found = edge.keys.find(bearer(request))
        if not found.may("admin"):
            found.need(scope)
        return found

    return Depends(key)


def _operator(request: Request) -> Key:
    """Without keys: a person on this machine, and no web page that speaks through their browser. Errors: Denied."""
    if not near(request):
        raise Denied("this needs an API key", "gateway.keys with scope promote, approve or admin; without keys loopback only")
    return Key(name="operator", sha256="", scopes=("infer", "feedback", "promote", "approve", "admin"))


def make_admin(controller: Controller, edge: Edge) -> FastAPI:
    app = make_app("policyloop gateway admin", edge)
    desks = controller.desks
    _reads(app, controller, desks)

    @app.post("/admin/models/{name}/release")
    async def release(name: str, body: ReleaseBody, key: Annotated[Key, may("promote")]) -> dict[str, Any]:
        desk = desk_of(desks, name)

        def decide(state: State) -> Move:
            move = controller.begin(desk, state, body.version, by=key.name, strategy=body.strategy, force=body.force)
            return Move(move.type, f"{body.reason}; {move.reason}", move.after, move.version)

        await controller.act(desk, key.name, decide)
        return picture(controller, desk)

    @app.post("/admin/models/{name}/promote")
    async def promote(name: str, body: PromoteBody, key: Annotated[Key, may("promote")]) -> dict[str, Any]:
        desk = desk_of(desks, name)
        await controller.act(desk, key.name, lambda state: _promote(desk, state, body))
        return picture(controller, desk)

    @app.post("/admin/models/{name}/rollback")
    async def rollback(name: str, body: RollbackBody, key: Annotated[Key, may("promote")]) -> dict[str, Any]:
        desk = desk_of(desks, name)
        await controller.act(desk, key.name, lambda state: go_back(state.after, body.reason, body.to, body.quarantine))
        return picture(controller, desk)

    @app.post("/admin/models/{name}/approve")
    async def approve(name: str, body: Act, key: Annotated[Key, may("approve")]) -> dict[str, Any]:
        desk = desk_of(desks, name)
        approval = desk.route.release.approval
        role = approval.role if approval is not None and approval.role in key.scopes else ", ".join(key.scopes)
        await controller.act(desk, key.name, lambda state: machine.approve(state.after, desk.route.release, key.name, role))
        return picture(controller, desk)

    return app


def _reads(app: FastAPI, controller: Controller, desks: Mapping[str, Desk]) -> None:
    @app.get("/admin/models")
    async def models(key: Annotated[Key, may("promote")]) -> dict[str, Any]:
        return {"models": [picture(controller, desk) for desk in desks.values()]}

    @app.get("/admin/models/{name}")
    async def model(name: str, key: Annotated[Key, may("promote")]) -> dict[str, Any]:
        return picture(controller, desk_of(desks, name))

    @app.get("/admin/models/{name}/events")
    def events(name: str, key: Annotated[Key, may("promote")], after: Annotated[int, Query(ge=0)] = 0) -> dict[str, Any]:
        return {"events": [event(state) for state in controller.store.events(desk_of(desks, name).name, after)]}


# --- moves ------------------------------------------------------------------------------------------------------------------


def _promote(desk: Desk, state: State, body: PromoteBody) -> Move:
    """The candidate on trial, now; or with `force` any version there is. Errors: No, Conflict."""
    now, after = time.time(), state.after
    candidate = after.release.get("candidate")
    if body.version is None or body.version == candidate:
        return machine.step(after, desk.route.release, now, body.reason)
    if not body.force:
        raise No(f"version {body.version} is not on trial", "a release of it first, or force, which is recorded", "version")
    staged = machine.begin(after, body.version, desk.route.release, now, by="", id=f"{body.version}-forced", force=True).after
    canary = machine.replace(staged, release={**staged.release, "state": "canary"})
    return machine.step(canary, desk.route.release, now, f"{body.reason} (forced)")


def go_back(after: After, reason: str, to: int | None = None, quarantine: bool = True) -> Move:
    """While something is on trial: that ends. Else stable goes to `to` or to the one before. Errors: BadInput."""
    if to is None and machine.routing(after).other is not None:
        return machine.back(after, reason, failed=quarantine)
    return machine.pointed_back(after, reason, to, quarantine)


# --- what it looks like -----------------------------------------------------------------------------------------------------


def event(state: State) -> dict[str, Any]:
    names = ("n", "at", "by", "type", "version", "reason", "report", "id", "prev_sha256", "sha256")
    after = {"aliases": dict(state.after.aliases), "release": dict(state.after.release)}
    return {name: getattr(state, name) for name in names} | {"after": after}


def picture(controller: Controller, desk: Desk) -> dict[str, Any]:
    """One model as an operator sees it: versions, shares, evidence against its bound, backends, the way back."""
    now, after, r = time.monotonic(), desk.state.after, desk.routing
    other = r.other if r.other is not None else after.aliases.get("previous")
    back_to = r.other if r.state in ("promoted", "watching") else (r.main if r.other is not None else other)
    warm = len(desk.usable(back_to, now)) if back_to is not None else 0
    verdict = controller.seen(desk).verdict.tree() if r.release else None
    return _finite(
        {
            "name": desk.name,
            "event": desk.state.n,
            "aliases": dict(after.aliases),
            "release": dict(after.release),
            "state": r.state,
            "serving": {desk.version_name(v): s for v, s in ((r.main, 1 - r.share), (r.other, r.share)) if v is not None and s},
            "answered": {desk.version_name(v): n for v, n in desk.got.items()},
            "verdict": verdict,
            "failures": after.failures,
            "frozen": machine.frozen(after, desk.route.release),
            "quarantined": list(after.quarantined),
            "way_back": {"to": back_to, **way_back(after.release.get("strategy", "double"), warm, after.release.get("warm_s"))},
            "backends": [backend_row(b, now) for b in desk.backends],
            "log_age_s": round(now - desk.read_at, 3),
            "store": controller.store_down or "ok",
        }
    )


def backend_row(b: Any, now: float) -> dict[str, Any]:
    return {
        "name": b.name,
        "version": b.version,
        "up": b.up,
        "why": b.why_down,
        "circuit": b.circuit(now),
        "ejected": now < b.ejected_until,
        "running": b.running,
    }


def _finite(tree: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(tree, dict):
        return {k: _finite(v) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_finite(v) for v in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
