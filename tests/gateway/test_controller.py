"""Whole releases over real HTTP and a real store: nothing fails, sessions stay, the way back is short, a crash changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from policyloop.gateway import (
    ApprovalSettings,
    BackendSettings,
    GatewaySettings,
    MemorySettings,
    ReleaseSettings,
    RouteSettings,
    SignalSettings,
    SignalsSettings,
    WebhookSettings,
)
from policyloop.gateway import release as machine
from policyloop.gateway.controller import Controller
from policyloop.gateway.desk import Desk
from policyloop.gateway.release import Seen
from policyloop.gateway.server import Gateway
from policyloop.gateway.upstream import Upstream
from policyloop.gateway.verdict import Verdict
from policyloop.gateway.webhooks import signature
from policyloop.store import moves, open_store

from .conftest import FAST, RULES, Model, Running, Scene, Town, listening, until

Play = Callable[[Scene], None]
ONLY_ERRORS = SignalsSettings(errors=SignalSettings(margin=0.2), slow=None, long=None, feedback=None, verifier=None)
QUICK = replace(RULES, signals=ONLY_ERRORS, steps=(0.5,), watch_s=0.3)


async def traffic(gateway: Running, answers: list[tuple[str, int, str]], stop: asyncio.Event, workers: int = 4) -> None:
    """Sessions that ask again and again, until told to stop."""
    turn = itertools.count()

    async def work() -> None:
        while not stop.is_set():
            session = f"s{next(turn) % 200}"
            reply = await gateway.ask(session)
            answers.append((session, reply.status_code, reply.headers["x-policyloop-version"]))

    await asyncio.gather(*(work() for _ in range(workers)))


def state_of(gateway: Running) -> str:
    return gateway.gateway.desks["m"].routing.state


@pytest.mark.parametrize("requests", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_request_fails_through_canary_blue_green_and_rollback(town: Play, requests: int) -> None:
    async def scene(town: Town) -> None:
        backends = [await town.backend(Model(v)) for v in (1, 2, 3)]
        rules = replace(QUICK, watch_s=60, holdback=0.0)
        gateway = await town.gateway(backends, rules)
        desk, answers, stop = gateway.gateway.desks["m"], list[Any](), asyncio.Event()
        flowing = asyncio.create_task(traffic(gateway, answers, stop))
        assert (await gateway.act("release", version=2)).json()["state"] == "staged"
        await until(lambda: state_of(gateway) == "canary")
        began = len(answers)
        await until(lambda: state_of(gateway) == "watching")
        in_canary = [a for a in answers[began:] if a[2] in ("m@1", "m@2")]
        await gateway.act("rollback", reason="a person says so")
        assert desk.routing.main == 1
        blue = replace(rules, mode="blue_green")
        desk.route = replace(desk.route, release=blue)
        await gateway.act("release", version=3)
        await until(lambda: desk.routing.main == 3 and len(answers) >= requests, 50)
        stop.set()
        await flowing
        assert {status for _, status, _ in answers} == {200} and len(answers) >= requests
        assert {v for _, _, v in answers} == {"m@1", "m@2", "m@3"} and len(in_canary) > 10
        _each_session_changes_only_with_the_release(answers)

    town(scene)


def _each_session_changes_only_with_the_release(answers: list[tuple[str, int, str]]) -> None:
    """What a session sees is part of 1, 2 (canary, promotion), 1 (rollback), 3: never back and forth in between."""
    for session in {a[0] for a in answers}:
        seen = [version for version, _ in itertools.groupby(v for s, _, v in answers if s == session)]
        way = iter(["m@1", "m@2", "m@1", "m@3"])
        assert all(version in way for version in seen), seen  # `in` consumes: a subsequence, in order


def test_the_split_is_the_share_of_sessions_and_a_session_stays(town: Play) -> None:
    async def scene(town: Town) -> None:
        models = [Model(1), Model(2)]
        gateway = await town.gateway([await town.backend(m) for m in models], replace(RULES, steps=(0.3,), step_min_s=60))
        await gateway.act("release", version=2)
        await until(lambda: state_of(gateway) == "canary")
        warmed = [len(m.seen) for m in models]
        replies = [await gateway.ask(f"s{i % 60}") for i in range(90)]
        by_session = {f"s{i}": {r.headers["x-policyloop-version"] for r in replies[i::60]} for i in range(60)}
        assert all(len(v) == 1 for v in by_session.values())
        measured = sum(v == {"m@2"} for v in by_session.values()) / 60
        assert 0.12 <= measured <= 0.48  # 3 sigma around 0.3
        asked = sum(r.headers["x-policyloop-version"] == "m@2" for r in replies)
        assert len(models[1].seen) - warmed[1] == asked  # at the backend as at the router
        picture = await gateway.picture()
        assert picture["serving"] == {"m@1": 0.7, "m@2": 0.3} and picture["answered"]["m@2"] == asked
        assert picture["way_back"] == {"to": 1, "kind": "now", "seconds": 0.0, "backends": 1}

    town(scene)


def test_a_candidate_that_fails_is_caught_by_itself_and_nobody_notices(town: Play) -> None:
    async def scene(town: Town) -> None:
        good, bad = Model(1), Model(2)
        gateway = await town.gateway(
            [await town.backend(good), await town.backend(bad)], QUICK, health=replace(FAST, breaker_failures=1000)
        )
        await gateway.act("release", version=2)
        await until(lambda: state_of(gateway) == "canary")
        bad.status = 500
        statuses: list[int] = []
        while state_of(gateway) == "canary":
            statuses += [r.status_code for r in await asyncio.gather(*(gateway.ask(f"x{len(statuses) + i}") for i in range(8)))]
        assert set(statuses) == {200}
        last = (await gateway.admin.get("/admin/models/m/events")).json()["events"][-1]
        assert last["type"] == "rolled_back" and last["reason"].startswith("errors: 0.000 of ") and last["report"]
        picture = await gateway.picture()
        assert picture["aliases"] == {"stable": 1} and picture["quarantined"] == [2] and picture["failures"] == 1
        assert (await gateway.act("release", version=2)).status_code in (409, 500, 400, 403)  # quarantined
        assert gateway.gateway.store.report("m", last["report"])["outcome"] == "fail"

    town(scene)


def test_worse_by_feedback_alone_goes_back_and_by_the_verifier_too(town: Play) -> None:
    async def scene(town: Town) -> None:
        signal = SignalSettings(margin=0.1)
        rules = replace(QUICK, signals=replace(ONLY_ERRORS, errors=None, feedback=signal, verifier=signal))
        models = [Model(1, text="#### 4 says"), Model(2, text="#### 5 says")]
        from policyloop.journal import JournalSettings

        journal = JournalSettings(folder=str(town.folder / "journal"), store=str(town.folder / "store"), fsync="never")
        gateway = await town.gateway([await town.backend(m) for m in models], rules, journal=journal)
        gateway.gateway.verifiers["m"] = lambda text, target: f"#### {target} " in text
        await gateway.act("release", version=2)
        await until(lambda: state_of(gateway) == "canary")
        for i in range(400):
            reply = await gateway.ask(f"s{i}", metadata={"target": "4"})
            body = {
                "request_id": reply.headers["x-request-id"],
                "kind": "thumb",
                "value": reply.headers["x-policyloop-version"] == "m@1",
            }
            assert (await gateway.client.post("/v1/feedback", json=body)).json()["recorded"]
            if state_of(gateway) != "canary":
                break
        after = gateway.gateway.desks["m"].state
        assert after.type == "rolled_back" and ("feedback: 0.000" in after.reason or "verifier: 0.000" in after.reason)

    town(scene)


def test_the_way_back_at_three_gateways_takes_less_than_a_second(town: Play) -> None:
    """From the put to the last new request that the bad version got."""

    async def scene(town: Town) -> None:
        models = [Model(1), Model(2)]
        backends = [await town.backend(m) for m in models]
        rules = replace(RULES, mode="blue_green", holdback=0.0)
        gateways = [await town.gateway(backends, rules, poll_s=0.2) for _ in range(3)]
        await gateways[0].act("release", version=2)
        await until(lambda: all(g.gateway.desks["m"].routing.main == 2 for g in gateways))
        answers, stop, late = list[Any](), asyncio.Event(), 0.0
        flowing = [asyncio.create_task(traffic(g, answers, stop, 1)) for g in gateways]
        await until(lambda: len(answers) > 30)
        before = len(models[1].seen)
        await asyncio.to_thread(moves.rollback, open_store(str(town.folder / "store")), "m", by="ann", reason="wrong units")
        put = time.monotonic()
        while time.monotonic() - put < 1.5:
            await asyncio.sleep(0.01)
            if len(models[1].seen) > before:
                before, late = len(models[1].seen), time.monotonic() - put
        stop.set()
        await asyncio.gather(*flowing)
        print(f"the way back: {late:.3f} s")
        assert late < 1.0 and {g.gateway.desks["m"].routing.main for g in gateways} == {1}
        assert {s for _, s, _ in answers} == {200}

    town(scene)


def test_the_verb_during_a_canary_ends_the_trial_and_leaves_stable_alone(town: Play) -> None:
    async def scene(town: Town) -> None:
        gateway = await town.gateway([await town.backend(Model(v)) for v in (1, 2)], replace(QUICK, step_min_s=60))
        await gateway.act("release", version=2)
        await until(lambda: state_of(gateway) == "canary")
        await asyncio.to_thread(moves.rollback, gateway.gateway.store, "m", by="ann", reason="no")
        await until(lambda: state_of(gateway) == "idle")
        after = gateway.gateway.desks["m"].state.after
        assert after.aliases == {"stable": 1} and after.quarantined == (2,) and gateway.gateway.desks["m"].routing.main == 1

    town(scene)


def test_replicas_judge_by_each_other_s_evidence_and_write_each_event_once(town: Play) -> None:
    async def scene(town: Town) -> None:
        backends = [await town.backend(Model(v)) for v in (1, 2)]
        gateways = [await town.gateway(backends, replace(QUICK, step_min_s=60)) for _ in range(2)]
        await gateways[0].act("release", version=2)
        await until(lambda: all(state_of(g) == "canary" for g in gateways))
        await asyncio.gather(*(gateways[i % 2].ask(f"s{i}") for i in range(40)))
        for _ in range(2):
            for g in gateways:
                await g.gateway.controller.share(g.gateway.desks["m"])
        sums = [Counter({k: a.n for k, a in g.gateway.desks["m"].arms().items()}) for g in gateways]
        assert sums[0] == sums[1] and sum(sums[0].values()) == 40
        types = [e.type for e in gateways[0].gateway.store.events("m")]
        assert Counter(types)["staged"] == Counter(types)["warming"] == Counter(types)["canary_step"] == 1

    town(scene)


def test_the_log_s_candidate_begins_a_release_and_what_does_not_fit_is_refused_there(town: Play) -> None:
    async def scene(town: Town) -> None:
        backends = [await town.backend(Model(v)) for v in (1, 2)]
        gateway = await town.gateway(backends, replace(QUICK, memory=MemorySettings(capacity_bytes=150, kv_bytes=100)))
        store = gateway.gateway.store
        moves.nominate(store, store.version("m", 2), by="ann", reason="the gate passed")
        await until(lambda: store.state("m").type == "refused")
        event = store.state("m")
        assert "do not fit into 0.0 MB" in event.reason and "replace" in event.reason and event.after.aliases == {"stable": 1}
        desk = gateway.gateway.desks["m"]
        desk.route = replace(desk.route, release=QUICK)
        moves.nominate(store, store.version("m", 2), by="ann", reason="again")
        await until(lambda: state_of(gateway) == "canary")
        assert store.state("m").after.release["by"] == "ann"

    town(scene)


@pytest.mark.slow
def test_approval_and_signed_webhooks(town: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_WEBHOOK_SECRET", "s3")
    got: list[tuple[str, bool]] = []

    async def hook(request: Request) -> JSONResponse:
        body = await request.body()
        got.append((json.loads(body)["type"], request.headers["x-policyloop-signature"] == signature("s3", body)))
        return JSONResponse({})

    async def scene(town: Town) -> None:
        url = await town.stack.enter_async_context(listening(Starlette(routes=[Route("/", hook, methods=["POST"])])))
        rules = replace(QUICK, approval=ApprovalSettings(n=1))
        gateway = await town.gateway([await town.backend(Model(v)) for v in (1, 2)], rules, webhooks=(WebhookSettings(url=url),))
        await gateway.act("release", version=2)
        n = itertools.count()
        while gateway.gateway.desks["m"].state.type != "approval_asked":
            await asyncio.gather(*(gateway.ask(f"s{next(n)}") for _ in range(8)))
        assert (await gateway.act("approve")).status_code == 200
        await until(lambda: gateway.gateway.desks["m"].routing.main == 2)
        await until(lambda: len(got) >= 6)
        assert all(fine for _, fine in got)
        assert {"staged", "warming", "canary_step", "approval_asked", "approved", "promoted"} <= {t for t, _ in got}

    town(scene)


def test_shadow_copies_reach_the_candidate_and_no_client(town: Play) -> None:
    async def scene(town: Town) -> None:
        models = [Model(1), Model(2)]
        rules = replace(QUICK, shadow_share=0.9, step_min_s=60)
        gateway = await town.gateway([await town.backend(m) for m in models], rules)
        await gateway.act("release", version=2)
        await until(lambda: state_of(gateway) == "shadow")
        before = len(models[1].seen)
        replies = [await gateway.ask(f"s{i}") for i in range(20)]
        assert {r.headers["x-policyloop-version"] for r in replies} == {"m@1"}
        await until(lambda: len(models[1].seen) - before >= 12)
        assert gateway.gateway.controller.seen(gateway.gateway.desks["m"]).shadow.signals[0].candidate.n >= 12

    town(scene)


# --- a crash at any moment --------------------------------------------------------------------------------------------------

PASS, FAIL, OPEN = Verdict("pass"), Verdict("fail"), Verdict("inconclusive")


class Killed(BaseException):
    """kill -9: nothing after this line runs."""


@examples(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([PASS, PASS, FAIL, OPEN]), st.sampled_from(["no", "before", "after"])), min_size=1, max_size=9
    )
)
def test_a_controller_killed_before_or_after_any_put_goes_on_where_the_log_stands(
    tmp_path_factory: Any, steps: list[Any]
) -> None:
    folder: Path = tmp_path_factory.mktemp("crash")
    rules = replace(RULES, signals=ONLY_ERRORS)
    route = RouteSettings(
        name="m", backends=tuple(BackendSettings(url=f"http://127.0.0.1:{v}", version=v) for v in (1, 2)), release=rules
    )

    async def scene() -> None:
        controller = fresh()
        controller.register_endpoints(controller.desks["m"])
        await controller.read(controller.desks["m"])
        await controller.act(controller.desks["m"], "ann", lambda s: controller.begin(controller.desks["m"], s, 2, by="ann"))
        for verdict, kill in steps:
            desk, before = controller.desks["m"], controller.store.state("m")
            move = machine.tick(before.after, Seen(1, 1, verdict=verdict, shadow=verdict), rules, time.time())
            if move is None:
                continue
            try:
                if kill == "before":
                    raise Killed
                await controller.write(desk, move, "gateway")
                if kill == "after":
                    raise Killed
            except Killed:
                known = controller.desks["m"].routing
                controller = fresh()  # another process: nothing is left but the store
                await controller.read(controller.desks["m"])
                assert controller.desks["m"].routing == known == machine.routing(controller.store.state("m").after)
            state = controller.store.state("m")
            assert state.stable in (1, 2) and state.stable not in state.after.quarantined
        assert [e.n for e in controller.store.events("m")] == list(range(1, controller.store.state("m").n + 1))

    def fresh() -> Controller:
        settings = GatewaySettings(models=(route,), store=str(folder))
        return Controller(settings, open_store(str(folder)), {"m": Desk(route)}, Upstream())

    asyncio.run(scene())


def test_a_gateway_that_vanishes_in_mid_canary_comes_back_with_state_sessions_and_evidence(town: Play) -> None:
    async def scene(town: Town) -> None:
        backends = [await town.backend(Model(v)) for v in (1, 2)]
        rules = replace(QUICK, step_min_s=60)
        first = await town.gateway(backends, rules)
        await first.act("release", version=2)
        await until(lambda: state_of(first) == "canary")
        before = {f"s{i}": (await first.ask(f"s{i}")).headers["x-policyloop-version"] for i in range(40)}
        await first.gateway.controller.share(first.gateway.desks["m"])
        for task in first.gateway._tasks:
            task.cancel()
        second = await town.gateway(backends, rules)
        assert state_of(second) == "canary"
        assert {s: (await second.ask(s)).headers["x-policyloop-version"] for s in before} == before
        await second.gateway.controller.share(second.gateway.desks["m"])
        assert sum(a.n for a in second.gateway.desks["m"].others.values()) == 40

    town(scene)


def test_a_name_without_versions_is_balanced_and_needs_no_release(town: Play) -> None:
    async def scene(town: Town) -> None:
        models = [Model(0), Model(0)]
        gateway = await town.gateway(
            [replace(await town.backend(m), version=None) for m in models], sticky=False, balance="round_robin"
        )
        assert [(await gateway.ask()).status_code for _ in range(4)] == [200] * 4
        assert [len(m.seen) for m in models] == [2, 2]

    town(scene)


def test_the_whole_is_a_gateway(tmp_path: Path) -> None:
    route = RouteSettings(name="m", backends=(BackendSettings(url="http://127.0.0.1:9"),), release=ReleaseSettings())
    assert Gateway(GatewaySettings(models=(route,), store=str(tmp_path))).app.title == "policyloop gateway"
