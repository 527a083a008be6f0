"""The console's routes on a FastAPI application: its own, or a gateway's admin port.

Example:
    >>> add_console(gateway.admin, Sources(store="store", live=picture_of, read_near=False))
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from policyloop.api.app import Edge, bearer, make_app, near
from policyloop.api.keys import Key, KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.errors import Denied, NotFound, Unauthenticated
from policyloop.store import Store, moves, open_store
from policyloop.training.folder import finite
from policyloop.ui import Sources, runs, versions

HERE = Path(__file__).parent
FILES = {
    "console.js": "text/javascript",
    "words.js": "text/javascript",
    "charts.js": "text/javascript",
    "console.css": "text/css",
}
READERS = ("promote", "approve", "admin")
GUARDED = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
Get = Callable[[str, Callable[..., Any]], None]


class MoveBody(BaseModel):
    """`n`: the event of the log that the page showed when the button was pressed."""

    model_config = ConfigDict(extra="forbid", strict=True)
    n: int = Field(ge=0)
    reason: str = Field(min_length=1, max_length=1000)
    version: int | None = Field(None, ge=1)
    force: bool = False


def make_console(sources: Sources, keys: KeyFile, life: Lifecycle | None = None) -> FastAPI:
    """The console alone. Without a key file it can be read from this machine, and moves nothing."""
    app = make_app("policyloop console", Edge(life or Lifecycle(), keys, Meters({})))
    add_console(app, sources)
    return app


def add_console(app: FastAPI, sources: Sources) -> None:
    store, reads = open_store(sources.store), reader(sources)

    def get(path: str, answer: Callable[..., Any]) -> None:
        @wraps(answer)
        def plain(**given: Any) -> Any:
            return finite(answer(**given))  # JSON has no NaN

        app.add_api_route(f"/ui/api/{path}", plain, methods=["GET"], dependencies=[reads], response_model=None)

    _page(app)
    _runs(get, sources, store)
    _models(get, sources, store)
    _moves(app, store)


def reader(sources: Sources) -> Any:
    """A dependency: whoever may read. Errors: Unauthenticated, Denied."""

    def check(request: Request) -> None:
        keys = request.app.state.edge.keys
        if near(request) and (sources.read_near or keys.path is None):
            return
        if keys.path is None:
            raise Denied("this page shows prompts and answers", "loopback, or a console with --keys and a key")
        key = keys.find(bearer(request))
        if not any(key.may(scope) for scope in READERS):
            key.need("promote")

    return Depends(check)


def _page(app: FastAPI) -> None:
    async def page() -> FileResponse:
        return FileResponse(HERE / "page.html", media_type="text/html; charset=utf-8", headers=GUARDED)

    async def file(name: str) -> FileResponse:
        if name not in FILES:
            raise NotFound(f"no file {name}", ", ".join(FILES), "the address")
        return FileResponse(HERE / name, media_type=f"{FILES[name]}; charset=utf-8", headers=GUARDED)

    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/ui/{name}", file, methods=["GET"], include_in_schema=False)


def _runs(get: Get, sources: Sources, store: Store) -> None:
    root, open_run = sources.runs, runs.open_run

    def start() -> dict[str, Any]:
        models, rows = [versions.standing(store, name) for name in store.names()], runs.table(root)
        return {"models": models, "runs": rows[:8], "waits": versions.waiting(models)}

    get("start", start)
    get("runs", lambda: {"runs": runs.table(root)})

    def run(name: str) -> dict[str, Any]:
        return runs.whole(name, open_run(root, name))

    def step(name: str, step: int) -> dict[str, Any]:
        return runs.step_of(open_run(root, name), step)

    def group(name: str, step: int, n: int) -> dict[str, Any]:
        return runs.group_of(open_run(root, name), step, n)

    def pass_map(name: str) -> dict[str, Any]:
        return runs.pass_map(open_run(root, name))

    get("runs/{name}", run)
    get("runs/{name}/steps/{step}", step)
    get("runs/{name}/steps/{step}/groups/{n}", group)
    get("runs/{name}/map", pass_map)


def _models(get: Get, sources: Sources, store: Store) -> None:
    def model(name: str) -> dict[str, Any]:
        return versions.model(store, known(store, name)) | {"live": sources.live(name)}

    def report(name: str, digest: str) -> dict[str, Any]:
        if len(digest) != 64 or not digest.isalnum():
            raise NotFound(f"no report {digest[:12]}", "a digest of the log", "the report")
        return store.report(known(store, name), digest)

    get("models", lambda: {"models": [versions.standing(store, name) for name in store.names()]})
    get("models/{name}", model)
    get("models/{name}/reports/{digest}", report)
    get("feedback", lambda: versions.feedback(sources.store))
    get("trace/{request_id}", lambda request_id: versions.followed(request_id, sources.store))


def mover(request: Request) -> Key:
    """Who moves: always a key with scope promote (or admin). Errors: Unauthenticated, Denied."""
    keys = request.app.state.edge.keys
    if keys.path is None:
        raise Unauthenticated(
            "the console was started without a key file, so it only reads", "`--keys FILE` (policyloop keys add)"
        )
    key = keys.find(bearer(request))
    if not key.may("admin"):
        key.need("promote", request.path_params["name"])
    return key


def _moves(app: FastAPI, store: Store) -> None:
    def me(request: Request) -> dict[str, Any]:
        keys, token = request.app.state.edge.keys, bearer(request)
        found = keys.find(token) if keys.path is not None and token else None
        return {
            "keys": keys.path is not None,
            "name": found.name if found else None,
            "scopes": list(found.scopes) if found else [],
        }

    app.add_api_route("/ui/api/me", me, methods=["GET"], response_model=None)

    @app.post("/ui/api/models/{name}/promote")
    def promote(name: str, body: MoveBody, key: Annotated[Key, Depends(mover)]) -> dict[str, Any]:
        state = store.state(known(store, name))
        number = body.version or state.candidate or state.after.release.get("candidate")
        if number is None:
            raise NotFound(f"{name} has no candidate", "a version", "version")
        version = store.version(name, number)
        moves.promote(store, version, by=key.name, reason=body.reason, force=body.force, expect_n=body.n)
        return versions.standing(store, name)

    @app.post("/ui/api/models/{name}/rollback")
    def rollback(name: str, body: MoveBody, key: Annotated[Key, Depends(mover)]) -> dict[str, Any]:
        moves.rollback(store, known(store, name), by=key.name, reason=body.reason, to=body.version, expect_n=body.n)
        return versions.standing(store, name)


def known(store: Store, name: str) -> str:
    """Errors: NotFound; a name is looked for before a path is made of it."""
    names = store.names()
    if name not in names:
        raise NotFound(f"no model {name} in {store.uri}", ", ".join(names[:12]) or "nothing is there yet", "the model")
    return name
