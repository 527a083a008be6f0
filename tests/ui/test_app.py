"""Who may read and who may move; the page and its files; nothing of torch."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_world import make_versions
from starlette.testclient import TestClient

from policyloop.api.keys import KeyFile
from policyloop.store import open_store
from policyloop.ui.app import FILES, HERE

Clients = Callable[..., TestClient]


@pytest.fixture
def fresh(tmp_path: Path) -> tuple[Path, str, Path, str]:
    """A store of its own, to move things in."""
    make_versions(open_store(str(tmp_path / "store")))
    keys = tmp_path / "keys.json"
    return tmp_path / "runs", str(tmp_path / "store"), keys, KeyFile(keys).add("ann", ["promote"])


def act(client: TestClient, what: str, token: str = "", **body: Any) -> Any:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return client.post(f"/ui/api/models/math/{what}", json={"reason": "test", **body}, headers=headers)


def test_the_room_loads_no_torch() -> None:
    code = "import sys, policyloop.ui.app, policyloop.cli.ui, policyloop.cli.gateway; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_page_and_files_come_along(world: Any, client_of: Clients) -> None:
    client = client_of(world)
    page = client.get("/")
    assert (
        page.status_code == 200
        and "script-src" not in page.text
        and "default-src 'self'" in page.headers["content-security-policy"]
    )
    assert not re.search(r"https?://", page.text)  # nothing from elsewhere
    for name, kind in FILES.items():
        assert client.get(f"/ui/{name}").headers["content-type"].startswith(kind)
    assert client.get("/ui/app.py").status_code == 404


def test_every_word_is_there_in_both_languages() -> None:
    english, chinese = (HERE / "words.js").read_text().split("\n  zh: {")
    keys = [sorted(re.findall(r'(?:^|[,{\s])("?[a-z][\w:]*"?): "', text)) for text in (english, chinese)]
    assert keys[0] == keys[1] and len(keys[0]) == len(set(keys[0])) > 100
    used = set(re.findall(r'\bt\("(\w+)"', (HERE / "console.js").read_text()))
    assert used <= set(keys[0])


def test_reading_is_for_this_machine_or_a_key(world: Any, client_of: Clients) -> None:
    key = {"authorization": f"Bearer {world[3]}"}
    assert client_of(world).get("/ui/api/start").status_code == 200
    far = client_of(world, host="10.0.0.9")
    assert far.get("/ui/api/start").status_code == 401 and far.get("/ui/api/start", headers=key).status_code == 200
    assert client_of(world, with_keys=False, host="10.0.0.9").get("/ui/api/start").status_code == 403
    assert client_of(world, read_near=False).get("/ui/api/start").status_code == 401  # a gateway with keys
    other = client_of(world).get("/ui/api/start", headers={"origin": "http://evil.example"})
    assert other.status_code == 401  # a page of somebody else in this browser
    assert client_of(world).get("/ui/api/start", headers={"host": "evil.example"}).status_code == 401  # a name that points here


def test_a_move_needs_the_scope_and_the_event_that_was_seen(fresh: Any, client_of: Clients) -> None:
    client, store = client_of(fresh), open_store(fresh[1])
    reader = KeyFile(fresh[2]).add("bob", ["infer"])
    elsewhere = KeyFile(fresh[2]).add("eve", ["promote"], ["other"])
    assert [act(client, "rollback", t, n=9).status_code for t in ("", "wrong", reader, elsewhere)] == [401, 401, 403, 403]
    assert act(client_of(fresh, with_keys=False), "rollback", n=9).status_code == 401
    assert act(client, "rollback", fresh[3], n=8).status_code == 409  # somebody moved first
    assert act(client, "rollback", fresh[3], n=9, reason="").status_code == 400
    assert store.state("math").n == 9


def test_promote_and_rollback_are_events_of_the_key(fresh: Any, client_of: Clients) -> None:
    client, store = client_of(fresh), open_store(fresh[1])
    assert act(client, "promote", fresh[3], n=9, version=3).json()["stable"] == 3
    assert (store.state("math").by, store.state("math").reason, store.state("math").type) == ("ann", "test", "promoted")
    assert act(client, "rollback", fresh[3], n=10).json()["stable"] == 2
    assert store.state("math").after.quarantined == (3,)
    refused = act(client, "promote", fresh[3], n=11, version=3)
    assert refused.status_code == 409 and "quarantined" in refused.json()["error"]["message"]
    assert act(client, "promote", fresh[3], n=11, version=3, force=True).json()["stable"] == 3


def test_a_rollback_while_something_is_on_trial_ends_the_trial(fresh: Any, client_of: Clients) -> None:
    said = act(client_of(fresh), "rollback", fresh[3], n=9).json()
    assert (said["stable"], said["state"], said["quarantined"]) == (2, "idle", [3])


@pytest.mark.parametrize("path", ["runs/none", "runs/..", "runs/first/steps/2", "runs/first/steps/5/groups/7", "models/none", "models/..%2f..", "models/math/reports/" + "0" * 63 + "z", "trace/none"])  # fmt: skip
def test_what_is_not_there_is_said_in_a_sentence(path: str, world: Any, client_of: Clients) -> None:
    reply = client_of(world).get(f"/ui/api/{path}")
    assert reply.status_code in (404, 503) and reply.json()["error"]["message"]


def test_who_am_i(world: Any, client_of: Clients) -> None:
    client = client_of(world)
    assert client.get("/ui/api/me").json() == {"keys": True, "name": None, "scopes": []}
    mine = client.get("/ui/api/me", headers={"authorization": f"Bearer {world[3]}"}).json()
    assert mine == {"keys": True, "name": "ann", "scopes": ["promote"]}
    assert client_of(world, with_keys=False).get("/ui/api/me").json()["keys"] is False
