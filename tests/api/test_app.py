"""The edge of every service: one error shape, ids and versions on every reply, scopes, limits, probes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from policyloop.api.app import Edge

Client = Callable[..., httpx.AsyncClient]
GOOD = {"messages": [{"role": "user", "content": "hi"}]}


def ask(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> httpx.Response:
    async def go() -> httpx.Response:
        async with client:
            return await client.request(method, path, **more)

    return asyncio.run(go())


def test_every_reply_has_an_id_and_the_version_and_a_caller_s_id_is_kept_if_harmless(edge: Edge, client: Client) -> None:
    token = edge.keys.add("a")
    fine = ask(client(token), "POST", "/v1/chat/completions", json=GOOD, headers={"x-request-id": "mine-1"})
    assert (fine.status_code, fine.headers["x-request-id"], fine.headers["x-policyloop-version"]) == (200, "mine-1", "arith@3")
    odd = ask(client(token), "GET", "/nowhere", headers={"x-request-id": "a b;<script>"})
    assert odd.status_code == 404 and odd.headers["x-request-id"].startswith("req-")
    assert odd.json()["error"]["message"] == "no route /nowhere"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"messages": "hi"}', "messages: 'hi' given, input should be a valid list"),
        (b"{}", "messages is missing"),
        (b'{"messages": []}', "messages: list should have at least 1 item"),
        (b"\xff\xfe{}", "UTF-8"),
        (b"[1]", "input should be a valid dictionary"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "UTF-8"),
        (json.dumps({**GOOD, "temperature": "hot"}).encode(), "temperature: 'hot' given, input should be a valid number"),
        (b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}', "temperature: "),
        (json.dumps({**GOOD, "temperature": -1}).encode(), "temperature: -1 given, input should be greater than or equal to 0"),
        (json.dumps({**GOOD, "temperature": True}).encode(), "temperature: True given"),
        (json.dumps({**GOOD, "n": 0}).encode(), "n: 0 given"),
        (json.dumps({**GOOD, "n": 1000}).encode(), "n: 1000 given"),
        (json.dumps({**GOOD, "max_token": 5}).encode(), "unknown field max_token: allowed is max_tokens, if that was meant"),
        (json.dumps({**GOOD, "stop": ""}).encode(), "stop: "),
        (json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}).encode(), "text"),
        (json.dumps({"messages": [{"role": "robot", "content": "x"}]}).encode(), "messages[0].role: 'robot' given"),
        (b'{"messages":[{"role":"user","content":"\\ud800"}]}', "surrogate"),
        (b"[" * 100_000, "bytes"),
        (b'{"a": ' + b"[" * 4000, "JSON"),
        (b'{"messages":[],"seed":' + b"9" * 5000 + b"}", "JSON"),
    ],
)
def test_bad_bodies_are_refused_in_one_sentence(edge: Edge, client: Client, body: bytes, says: str) -> None:
    token = edge.keys.add("a")
    got = ask(client(token), "POST", "/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    said = got.json()["error"]
    assert got.status_code in (400, 413) and says.lower() in said["message"].lower(), said
    assert said["type"] == "invalid_request_error" and "\n" not in said["message"] and len(said["message"]) < 700


def test_what_changes_nothing_passes_and_what_would_is_handed_on(edge: Edge, client: Client) -> None:
    token = edge.keys.add("a")
    body = {
        **GOOD,
        "user": "u",
        "metadata": {"a": "b"},
        "logit_bias": {},
        "frequency_penalty": 0,
        "presence_penalty": 0.5,
        "zzz": 1,
    }
    got = ask(client(token), "POST", "/v1/chat/completions", json=body)
    assert got.json() == {"extras": {"presence_penalty": 0.5}, "key": "a"}


def test_nobody_passes_without_a_key_and_admin_is_denied_by_default(edge: Edge, client: Client) -> None:
    token = edge.keys.add("a")
    for wrong in (None, "pl-wrong", token[:-1]):
        got = ask(client(wrong), "POST", "/v1/chat/completions", json=GOOD)
        assert got.status_code == 401 and got.headers["www-authenticate"] == "Bearer"
    got = ask(client(token), "POST", "/admin/now")
    assert (got.status_code, got.json()["error"]["code"]) == (403, "denied")
    assert ask(client(edge.keys.add("boss", ["admin"])), "POST", "/admin/now").json() == {"key": "boss"}


def test_limits_of_a_key_answer_429_with_the_seconds_left(edge: Edge, client: Client) -> None:
    token = edge.keys.add("a", requests_per_minute=2)
    codes = [ask(client(token), "POST", "/v1/chat/completions", json=GOOD) for _ in range(3)]
    assert [c.status_code for c in codes] == [200, 200, 429]
    assert 1 <= int(codes[-1].headers["retry-after"]) <= 60
    key = edge.keys.find(edge.keys.add("b", tokens_per_minute=100))
    edge.quotas.request(key)
    edge.quotas.tokens(key, 250)
    with pytest.raises(Exception, match="100 tokens of this minute"):
        edge.quotas.request(key)


def test_a_computed_retry_after_is_rounded_up_and_a_bug_tells_nothing(client: Client) -> None:
    full = ask(client(), "GET", "/full")
    assert (full.status_code, full.headers["retry-after"], full.json()["error"]["type"]) == (429, "3", "rate_limit_error")
    bug = ask(client(), "GET", "/bug")
    assert bug.status_code == 500 and "secret" not in bug.text and bug.json()["error"]["code"] == "internal_error"


def test_probes_tell_live_startup_and_ready_apart(edge: Edge, client: Client) -> None:
    def codes() -> list[int]:
        return [ask(client(), "GET", f"/health/{name}").status_code for name in ("live", "startup", "ready")]

    edge.life.state = "starting"
    assert codes() == [200, 503, 503]
    edge.life.started()
    assert codes() == [200, 200, 200]
    edge.life.beat_age_s = lambda: 1e9
    assert codes() == [503, 200, 200]
    edge.life.beat_age_s = lambda: 0.0
    assert asyncio.run(edge.life.drain(0.1))
    assert codes() == [200, 200, 503]
    assert "policyloop_heartbeat_age_seconds 0.0" in ask(client(), "GET", "/metrics").text


def test_the_room_imports_without_torch() -> None:
    code = (
        "import sys; import policyloop.api.app, policyloop.api.running, policyloop.api.replies; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
