"""The data path over real HTTP: errors, retries, streams, clients that leave, limits, endpoints policyloop never trained."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest

from policyloop.api.keys import KeyFile
from policyloop.gateway import BackendSettings, QuotaSettings

from .conftest import FAST, Model, Scene, Town, until

Play = Callable[[Scene], None]
NOWHERE = BackendSettings(url="http://127.0.0.1:9", version=1)


def test_the_answer_names_its_version_and_request(town: Play) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([await town.backend(Model(1))])
        reply = await gateway.ask()
        assert reply.status_code == 200 and reply.json()["choices"][0]["message"]["content"] == "four v1"
        assert reply.headers["x-policyloop-version"] == "m@1" and reply.headers["x-request-id"].startswith("req-")
        models = (await gateway.client.get("/v1/models")).json()["data"]
        assert [(m["id"], m["version"]) for m in models] == [("m", "m@1")]
        assert (await gateway.ask(model="other")).status_code == 404
        assert (await gateway.client.post("/v1/chat/completions", content=b"{")).status_code == 400

    town(scene)


def test_the_openai_client_works_whole_and_streaming(town: Play) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([await town.backend(Model(1))])
        client = openai.AsyncOpenAI(base_url=f"{gateway.client.base_url}/v1".replace("//v1", "/v1"), api_key="none")
        messages: Any = [{"role": "user", "content": "2+2"}]
        whole = await client.chat.completions.create(model="m", messages=messages)
        assert whole.choices[0].message.content == "four v1"
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "11111"
        await client.close()

    town(scene)


def test_an_unreachable_and_a_failing_backend_cost_no_request(town: Play) -> None:
    async def scene(town: Town) -> None:
        good, bad = Model(1), Model(1, status=500)
        gateway = await town.gateway(
            [NOWHERE, await town.backend(bad), await town.backend(good)], balance="round_robin", sticky=False
        )
        for backend in gateway.gateway.desks["m"].backends:
            backend.up = True  # as if it had just gone
        replies = [await gateway.ask() for _ in range(12)]
        assert {r.status_code for r in replies} == {200} and len(good.seen) == 12
        assert 3 <= len(bad.seen) <= 5  # then its circuit was open, or its health check had failed
        assert "policyloop_gateway_retries_total" in (await gateway.client.get("/metrics")).text

    town(scene)


def test_a_started_stream_is_never_sent_twice_and_ends_in_an_error_event(town: Play) -> None:
    async def scene(town: Town) -> None:
        one, other = Model(1, break_after=2), Model(1, break_after=2)
        gateway = await town.gateway([await town.backend(one), await town.backend(other)])
        text = (await gateway.ask(stream=True)).text
        assert len(one.seen) + len(other.seen) == 1
        assert "[DONE]" not in text and text.count("delta") == 2
        last = json.loads(text.strip().splitlines()[-1].removeprefix("data: "))
        assert last["error"]["type"] == "server_error"

    town(scene)


def test_a_client_that_leaves_frees_the_backend(town: Play) -> None:
    async def scene(town: Town) -> None:
        model = Model(1, delay_s=5.0)
        gateway = await town.gateway([await town.backend(model)])
        desk = gateway.gateway.desks["m"]
        for stream in (False, True):
            asked = asyncio.create_task(gateway.ask(stream=stream))
            await until(lambda: desk.running == 1)
            asked.cancel()
            await until(lambda: desk.running == 0 and desk.backends[0].running == 0)
        assert desk.backends[0].circuit(0.0) == "closed"

    town(scene)


def test_nobody_there_is_503_and_too_many_is_429_each_with_the_seconds(town: Play) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([NOWHERE])
        reply = await gateway.ask()
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1 and "no healthy backend of m@1" in reply.text
        full = await town.gateway([await town.backend(Model(1, delay_s=0.3))], max_running=1)
        replies = await asyncio.gather(*(full.ask() for _ in range(3)))
        assert sorted(r.status_code for r in replies) == [200, 429, 429]
        assert all("retry-after" in r.headers for r in replies if r.status_code == 429)

    town(scene)


def test_keys_scopes_and_the_quota_of_a_model(town: Play) -> None:
    async def scene(town: Town) -> None:
        file = town.folder / "keys.json"
        token, other = KeyFile(file).add("ann", ["infer"]), KeyFile(file).add("op", ["promote"])
        backend = replace(await town.backend(Model(1)), key_env=None)
        gateway = await town.gateway([backend], keys=str(file), quota=QuotaSettings(requests_per_minute=2))
        assert (await gateway.ask()).status_code == 401
        gateway.client.headers["authorization"] = f"Bearer {token}"
        assert [(await gateway.ask()).status_code for _ in range(3)] == [200, 200, 429]
        assert (await gateway.act("rollback")).status_code == 401
        gateway.admin.headers["authorization"] = f"Bearer {token}"
        assert (await gateway.act("rollback")).status_code == 403
        gateway.admin.headers["authorization"] = f"Bearer {other}"
        assert (await gateway.act("rollback")).status_code == 400  # allowed, but there is nothing to go back to

    town(scene)


def test_without_keys_a_web_page_cannot_act_through_a_browser(town: Play) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([await town.backend(Model(1))])
        for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
            assert (await gateway.admin.post("/admin/models/m/rollback", json={}, headers=headers)).status_code == 403
        assert (await gateway.admin.get("/admin/models")).status_code == 200

    town(scene)


def test_versions_by_alias_number_and_as_the_backend_reports_them(town: Play) -> None:
    async def scene(town: Town) -> None:
        one, two = await town.backend(Model(1)), await town.backend(Model(2, reports=True), known=False)
        gateway = await town.gateway([one, two, replace(two, version=2)])
        assert (await gateway.ask(model="m@2")).json()["choices"][0]["message"]["content"] == "four v2"
        assert (await gateway.ask(model="m@stable")).headers["x-policyloop-version"] == "m@1"
        reply = await gateway.ask(model="m@9")
        assert reply.status_code == 404 and "stable" in reply.text
        assert gateway.gateway.desks["m"].backends[1].version == 2

    town(scene)


def test_predict_in_front_of_a_server_that_has_none(town: Play) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([await town.backend(Model(1, text="4 apples. #### 4"))], sticky=False)
        for _ in range(2):
            reply = await gateway.client.post("/predict", json={"question": "2+2?"})
            tree = reply.json()
            assert tree["answer"].startswith("4") and tree["reasoning"] == "4 apples. #### 4 v1" and tree["version"] == "m@1"
            assert tree["request_id"] == reply.headers["x-request-id"]

    town(scene)


def test_a_backend_that_knows_another_name_and_two_adapters_on_one_engine(town: Play) -> None:
    async def scene(town: Town) -> None:
        engine = Model(1)
        one = await town.backend(engine, name="math-v1")
        gateway = await town.gateway([one, replace(one, version=2, model="math-v2")])
        await gateway.ask()
        await gateway.ask(model="m@2")
        assert [body["model"] for body in engine.seen] == ["math-v1", "math-v2"]

    town(scene)


@pytest.mark.parametrize("kind", ["double"])
def test_draining_refuses_new_requests_and_lets_streams_end(town: Play, kind: str) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([await town.backend(Model(1, delay_s=0.05, tokens=8))])
        running = asyncio.create_task(gateway.ask(stream=True))
        await until(lambda: gateway.gateway.life.running == 1)
        draining = asyncio.create_task(gateway.gateway.life.drain(5.0))
        await asyncio.sleep(0)
        refused = await gateway.ask()
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert (await running).text.rstrip().endswith("data: [DONE]") and await draining
        assert (await gateway.client.get("/health/ready")).status_code == 503

    town(scene)


def test_an_outage_heals_by_itself(town: Play) -> None:
    async def scene(town: Town) -> None:
        model = Model(1)
        gateway = await town.gateway([await town.backend(model)], health=replace(FAST, down_after=1))
        model.status = 599
        backend = gateway.gateway.desks["m"].backends[0]
        await until(lambda: not backend.up)
        assert (await gateway.ask()).status_code == 503
        model.status = 200
        await until(lambda: backend.up)
        assert (await gateway.ask()).status_code == 200

    town(scene)
