"""The console on a gateway's admin port: the page is there, with what only the gateway knows; with a key file nobody reads without a key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from made_world import make_versions

from policyloop.api.keys import KeyFile
from policyloop.cli.gateway import with_console
from policyloop.gateway import BackendSettings, GatewaySettings, RouteSettings
from policyloop.gateway.server import Gateway
from policyloop.store import moves, open_store


def answers(folder: Path, keys: Path | None, *asked: tuple[str, dict[str, str]]) -> list[httpx.Response]:
    backends = (BackendSettings(url="http://127.0.0.1:9", version=2), BackendSettings(url="http://127.0.0.1:9", version=3))
    route = RouteSettings(name="math", backends=backends)
    settings = GatewaySettings(models=(route,), store=str(folder / "store"), keys=str(keys) if keys else None)

    async def story() -> list[httpx.Response]:
        gateway = Gateway(settings)
        with_console(gateway)
        await gateway.start()
        transport = httpx.ASGITransport(gateway.admin, client=("127.0.0.1", 50000))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8090") as client:
            found = [await client.get(path, headers=headers) for path, headers in asked]
        await gateway.stop()
        return found

    return asyncio.run(story())


def test_backends_and_the_way_back_are_shown(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    make_versions(store)
    moves.rollback(store, "math", by="ann", reason="the trial ends")  # or this gateway, whose backends are away, would end it
    page, model, admin = answers(tmp_path, None, ("/", {}), ("/ui/api/models/math", {}), ("/admin/models/math", {}))
    assert page.status_code == 200 and "console.js" in page.text
    live: dict[str, Any] = model.json()["live"]
    assert {b["version"] for b in live["backends"]} == {2, 3} and not any(b["up"] for b in live["backends"])
    assert live["way_back"]["to"] == 1 and live["quarantined"] == [3]
    assert admin.json()["event"] == live["event"] == model.json()["n"] == 10


def test_with_keys_reading_needs_one(tmp_path: Path) -> None:
    make_versions(open_store(str(tmp_path / "store")))
    keys = tmp_path / "keys.json"
    token = KeyFile(keys).add("ann", ["promote"])
    bare, held = answers(tmp_path, keys, ("/ui/api/start", {}), ("/ui/api/start", {"authorization": f"Bearer {token}"}))
    assert (bare.status_code, held.status_code) == (401, 200)
