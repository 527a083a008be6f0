"""The reward service: what `rewards.remote` asks and gets, rows in their order, batches, refusals, a real process and its drain."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from policyloop.api.app import Edge
from policyloop.api.keys import KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.config import build
from policyloop.monitor.metrics import REWARDING
from policyloop.rewards import Context, RewardsSettings
from policyloop.rewards.scorer import Scorer
from policyloop.serve.reward import Batcher, application, version_of
from policyloop.tasks.grading import Verdict


def settings(tree: dict[str, Any]) -> RewardsSettings:
    return build(RewardsSettings, tree, "rewards")


@asynccontextmanager
async def client(tree: dict[str, Any], *, deadline_s: float = 10.0, max_waiting: int = 100) -> AsyncIterator[httpx.AsyncClient]:
    rewards = settings(tree)
    edge = Edge(Lifecycle(), KeyFile(None), Meters(REWARDING))
    edge.life.version = lambda: version_of(rewards)
    batcher = Batcher(Scorer(rewards, Context(Verdict("math"), frozenset({"answer", "target"}), 100)), 64, 0.01, max_waiting)
    work = asyncio.create_task(batcher.work())
    edge.life.started()
    transport = httpx.ASGITransport(application(edge, batcher, deadline_s))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
            yield made
    finally:
        work.cancel()


def rows(*pairs: tuple[str, str, str | None]) -> dict[str, Any]:
    return {"rows": [{"prompt": p, "completion": c, "target": t} for p, c, t in pairs]}


CORRECT = {"terms": [{"correct": {}}]}


def test_scores_come_back_in_the_order_of_the_rows() -> None:
    async def ask() -> dict[str, Any]:
        async with client(CORRECT) as http:
            # prompts interleaved: rows of one prompt are scored as one group and must still find their places
            said = rows(("2+3=", "5", "5"), ("4+4=", "9", "8"), ("2+3=", "6", "5"), ("4+4=", "The answer is 8.", "8"))
            return (await http.post("/score", json=said)).json()

    reply = asyncio.run(ask())
    assert reply["scores"] == [1.0, 0.0, 0.0, 1.0]
    assert [c["correct"] for c in reply["components"]] == [1.0, 0.0, 0.0, 1.0]
    assert reply["version"].startswith("rewards-")


def test_a_gold_that_cannot_be_judged_is_null_and_counted() -> None:
    async def ask() -> tuple[Any, str]:
        async with client(CORRECT) as http:
            reply = (await http.post("/score", json=rows(("q", "5", None)))).json()
            return reply["scores"], (await http.get("/metrics")).text

    scores, metrics = asyncio.run(ask())
    assert scores == [None]
    assert "policyloop_rows_unscored_total 1.0" in metrics and "policyloop_rows_total 1.0" in metrics


@pytest.mark.parametrize(
    "body", [{}, {"rows": []}, {"rows": [{"prompt": "q"}]}, {"rows": [{"prompt": 3, "completion": "x"}]}, {"row": []}]
)
def test_bodies_that_mean_nothing_are_one_sentence(body: dict[str, Any]) -> None:
    async def ask() -> httpx.Response:
        async with client(CORRECT) as http:
            return await http.post("/score", json=body)

    reply = asyncio.run(ask())
    assert reply.status_code in (400, 422) and reply.json()["error"]["message"]


def test_requests_that_wait_together_are_scored_together_and_too_many_are_refused() -> None:
    async def ask() -> list[int]:
        async with client(CORRECT, max_waiting=8) as http:
            replies = await asyncio.gather(*(http.post("/score", json=rows(*[("2+3=", "5", "5")] * 4)) for _ in range(6)))
            assert all(r.json()["scores"] == [1.0] * 4 for r in replies if r.status_code == 200)
            assert all(int(r.headers["retry-after"]) >= 1 for r in replies if r.status_code == 429)
            return [r.status_code for r in replies]

    codes = asyncio.run(ask())
    assert set(codes) == {200, 429}


def slow(completions: list[str]) -> list[float]:
    time.sleep(1.0 if "slow" in completions else 0.0)
    return [1.0] * len(completions)


def test_a_deadline_is_kept_and_the_next_request_is_served() -> None:
    async def ask() -> tuple[int, int]:
        async with client({"terms": [{f"{Path(__file__)}:slow": {}}]}, deadline_s=0.3) as http:
            late = await http.post("/score", json=rows(("q", "slow", None)))
            await asyncio.sleep(1.0)
            fine = await http.post("/score", json=rows(("q", "quick", None)))
            return late.status_code, fine.status_code

    assert asyncio.run(ask()) == (503, 200)


def test_the_verb_serves_what_rewards_remote_asks_and_drains(tmp_path: Path) -> None:
    from policyloop.rewards.remote import Remote

    config = tmp_path / "reward.yaml"
    config.write_text("rewards: [{correct: {}}]\nreward_service: {port: 0}\n")
    command = [sys.executable, "-m", "policyloop", "reward-service", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            port = None
            for line in process.stderr:
                port = int(found[1]) if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)) else port
                if line.startswith("ready"):
                    break
            remote = Remote(f"http://127.0.0.1:{port}/score", timeout_s=20)
            assert asyncio.run(remote(["2+3=", "2+2="], ["5", "5"], ["5", "4"])) == [1.0, 0.0]
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_the_length_of_a_row_counts_where_a_length_term_asks_for_it() -> None:
    async def ask() -> list[float]:
        tree = {**CORRECT, "token_efficiency": {"length_ratio_threshold": 0.5, "weight": 0.2, "length_budget": 100}}
        async with client(tree) as http:
            bodies = [{"prompt": "2+3=", "completion": "5", "target": "5", "tokens": n} for n in (10, 75, 100)]
            return (await http.post("/score", json={"rows": bodies})).json()["scores"]

    # nothing up to half the budget, then linear to the whole weight
    assert asyncio.run(ask()) == pytest.approx([1.0, 0.9, 0.8])


def test_the_version_changes_with_the_table() -> None:
    assert version_of(settings(CORRECT)) == version_of(settings(CORRECT))
    assert version_of(settings(CORRECT)) != version_of(settings({"terms": [{"correct": {"weight": 2.0}}]}))
