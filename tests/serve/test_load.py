"""Under load: overload is refused in time, clients that leave free their places, swaps fail nobody and mix nothing, drains end well."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import Served, chat_tiny

TEXT = "/v1/completions"


def at_once(url: str, work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            return await work(client)

    return asyncio.run(go())


def body(i: int, tokens: int = 24, **more: Any) -> dict[str, Any]:
    return {"prompt": f"{i % 10}-3+2=", "seed": i, "max_tokens": tokens, "ignore_eos": True, **more}


def test_overload_is_answered_or_refused_within_the_deadline(tiny: Path) -> None:
    with Served(tiny, max_waiting=6, deadline_s=20, options={"max_rows": 2}) as server:

        async def one(client: httpx.AsyncClient, i: int) -> tuple[int, float, httpx.Headers]:
            began = time.monotonic()
            got = await client.post(TEXT, json=body(i))
            return got.status_code, time.monotonic() - began, got.headers

        async def all_of(client: httpx.AsyncClient) -> Any:
            return await asyncio.gather(*(one(client, i) for i in range(60)))

        done = at_once(server.url, all_of)
        codes = Counter(code for code, _, _ in done)
        assert set(codes) == {200, 429} and codes[200] >= 8, codes
        assert all(took < 20 for _, took, _ in done)
        assert all(int(headers["retry-after"]) >= 1 for code, _, headers in done if code == 429)
        server.until(server.idle)
        assert server.ask(TEXT, body(1)).status_code == 200


def test_a_deadline_ends_what_is_running_and_what_waits(server: Served) -> None:
    """The engine is held still until the deadlines have passed."""
    turn: Any = server.backend.now.engine._turn  # type: ignore[attr-defined]
    soon = {"x-policyloop-deadline-s": "0.4"}

    def held(seconds: float) -> None:
        with turn:
            time.sleep(seconds)

    async def running(client: httpx.AsyncClient) -> list[str]:
        async with client.stream("POST", TEXT, json=body(0, 240, stream=True), headers=soon) as reply:
            lines = reply.aiter_lines()
            seen = [await anext(lines)]
            await asyncio.to_thread(held, 0.5)
            return [line for line in [*seen, *[line async for line in lines]] if line]

    *_, last, done = at_once(server.url, running)
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "deadline" and done == "data: [DONE]"

    async def waiting(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(TEXT, json=body(0, 240), headers={"x-policyloop-deadline-s": "0.1"})

    with server.backend.now.engine._server.quiet():  # type: ignore[attr-defined]
        got = at_once(server.url, waiting)
    assert got.status_code == 429 and "its turn did not come within its deadline" in got.json()["error"]["message"]
    server.until(server.idle)


def test_nobody_waits_for_an_engine_that_is_stuck_and_the_probe_says_so(server: Served) -> None:
    turn: Any = server.backend.now.engine._turn  # type: ignore[attr-defined]

    async def asked(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(TEXT, json=body(0), headers={"x-policyloop-deadline-s": "0.1"})

    server.edge.life.stuck_s, usual = 0.5, server.edge.life.stuck_s
    with turn:
        got = at_once(server.url, asked)
        assert got.status_code == 503 and server.ask("/health/live").status_code == 503
    server.until(lambda: server.ask("/health/live").status_code == 200)
    server.edge.life.stuck_s = usual
    server.until(server.idle)


async def _leaves(client: httpx.AsyncClient, i: int, after: int) -> None:
    """A client that reads some events and goes."""
    async with client.stream("POST", TEXT, json=body(i, 200, stream=True)) as reply:
        async for _ in reply.aiter_lines():
            after -= 1
            if after < 0:
                return


def disconnects(server: Served, requests: int, share: float = 0.3, at_a_time: int = 16) -> None:
    choose = random.Random(0)

    async def one(client: httpx.AsyncClient, gate: asyncio.Semaphore, i: int) -> None:
        async with gate:
            if choose.random() < share:
                await _leaves(client, i, choose.randrange(4))
            else:
                assert (await client.post(TEXT, json=body(i, 4))).status_code in (200, 429)

    async def all_of(client: httpx.AsyncClient) -> None:
        gate = asyncio.Semaphore(at_a_time)
        await asyncio.gather(*(one(client, gate, i) for i in range(requests)))

    at_once(server.url, all_of)


def test_clients_that_leave_free_their_slots(tiny: Path) -> None:
    with Served(tiny) as server:
        disconnects(server, 40)
        server.until(server.idle)
        assert server.backend.load().kv_used_ratio == 0
        assert Counter(r["finish_reason"] for r in server.records)["abort"] >= 5

        async def left(client: httpx.AsyncClient) -> None:  # before the whole answer is there
            with pytest.raises(httpx.ReadTimeout):
                await client.post(TEXT, json=body(1, 240, n=8), timeout=0.05)

        at_once(server.url, left)
        server.until(server.idle)
        assert {r["finish_reason"] for r in server.records[-8:]} == {"abort"}


def test_swaps_under_traffic_fail_nobody_and_mix_nothing(tiny: Path, tmp_path: Path) -> None:
    folders = [tiny, chat_tiny(tmp_path / "other", seed=1)]
    with Served(tiny) as server:
        expected = {str(f): _texts(f) for f in folders}
        stop, answered = False, set[Path]()

        async def keep_asking(client: httpx.AsyncClient, i: int) -> list[tuple[str, str, int]]:
            seen = []
            while not stop:
                got = (await client.post(TEXT, json=body(i))).json()
                seen.append((got["version"], got["choices"][0]["text"], i))
                answered.add(Path(got["version"]))
            return seen

        async def swap() -> None:
            nonlocal stop
            for k in range(2):
                await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(server.backend.swap(str(folders[(k + 1) % 2])), server.loop)
                )
                answered.clear()
                while folders[(k + 1) % 2] not in answered:
                    await asyncio.sleep(0.01)
            stop = True

        async def all_of(client: httpx.AsyncClient) -> Any:
            *seen, _ = await asyncio.gather(*(keep_asking(client, i) for i in range(4)), swap())
            return [row for rows in seen for row in rows]

        seen = at_once(server.url, all_of)
        assert {version for version, _, _ in seen} == set(expected)
        assert all(text == expected[version][i] for version, text, i in seen)


def _texts(folder: Path) -> list[str]:
    with Served(folder) as server:
        return [server.ask(TEXT, body(i)).json()["choices"][0]["text"] for i in range(4)]


def test_a_swap_to_nothing_leaves_the_old_weights(server: Served) -> None:
    before = server.text("9-3=", seed=1)
    with pytest.raises(Exception, match="no model nowhere"):
        asyncio.run_coroutine_threadsafe(server.backend.swap("nowhere"), server.loop).result()
    assert server.text("9-3=", seed=1) == before


def test_sigterm_lets_streams_end_and_answers_new_requests_503(tiny: Path, tmp_path: Path) -> None:
    """A process of its own, as an operator runs it."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "policyloop", "serve", str(tiny), "--port", "0", "--admin-port", "0", "--name", "t"]
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--precision", "fp32"], stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        url = _ready(log, process)

        async def go(client: httpx.AsyncClient) -> Any:
            begun = asyncio.Semaphore(0)

            async def stream(i: int) -> list[str]:
                async with client.stream("POST", TEXT, json=body(i, 230, stream=True)) as reply:
                    lines = []
                    async for line in reply.aiter_lines():
                        if line and not lines:
                            begun.release()
                        lines.append(line)
                    return [line for line in lines if line]

            streams = [asyncio.create_task(stream(i)) for i in range(12)]
            for _ in streams:
                await begun.acquire()
            process.send_signal(signal.SIGTERM)
            refused = None
            while refused is None or refused.status_code == 200:
                refused = await client.post(TEXT, json=body(99, 1))
            ready = await client.get("/health/ready")
            return await asyncio.gather(*streams), refused, ready

        ends, refused, ready = at_once(url, go)
        assert [lines[-1] for lines in ends] == ["data: [DONE]"] * 12
        assert all(json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length" for lines in ends)
        assert refused.status_code == ready.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert process.wait(30) == 0
    finally:
        process.kill()


def _ready(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        text = log.read_text()
        if "ready: " in text:
            return text.partition("policyloop serve listens on ")[2].split()[0]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


@pytest.mark.slow
def test_ten_thousand_requests_with_disconnects_lose_no_slot_and_no_memory(tiny: Path) -> None:
    import numpy as np
    import psutil
    from scipy import stats

    with Served(tiny) as server:
        server.records = _Nothing()  # type: ignore[assignment]
        server.service.on_finished = None
        sizes = []
        for _ in range(40):
            disconnects(server, 250)
            server.until(server.idle)
            sizes.append(psutil.Process().memory_info().rss)
        fit = stats.linregress(np.arange(20) * 250, np.array(sizes[20:]) / 1024)
        upper = fit.slope + stats.t.ppf(0.95, 18) * fit.stderr
        print(f"memory slope {fit.slope:.3f} KB a request, 95 % bound {upper:.3f}")
        assert upper < 0.5


class _Nothing(list[Any]):
    def append(self, item: Any) -> None:
        pass
