"""Figures of a load: quantiles by definition, failures counted; and the tool against a real port that answers, refuses and breaks."""

from __future__ import annotations

import asyncio
import threading

import pytest
import uvicorn

from policyloop.api.running import bound
from policyloop.bench.load import Load, Seen, figures, measure, quantile
from policyloop.errors import Unavailable


def test_quantiles_are_the_smallest_value_that_enough_do_not_exceed() -> None:
    values = [float(i) for i in range(1, 101)]
    assert [quantile(values, q) for q in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.99) == 7.0 and quantile([], 0.5) != quantile([], 0.5)


def test_figures_count_what_failed_and_rate_what_was_answered() -> None:
    seen = [Seen(0.0, 0.1, 1.1, 11, 200), Seen(1.0, 1.3, 2.0, 8, 200), Seen(1.5, 0, 0, 0, 429), Seen(1.6, 0, 0, 0, 0)]
    found = figures(seen)
    assert (found["requests"], found["answered"], found["refused"], found["failed"]) == (4, 2, 1, 1)
    assert found["requests_per_s"] == 1.0 and found["tokens_per_s"] == 9.5
    assert found["ttft_p99_s"] == pytest.approx(0.3) and found["latency_p50_s"] == pytest.approx(1.0)
    assert found["per_token_p50_s"] == pytest.approx(0.1) and found["per_token_p99_s"] == pytest.approx(0.1)


async def _server(scope, receive, send) -> None:  # type: ignore[no-untyped-def]
    """Every third request breaks off, every fifth is refused."""
    _server.count += 1  # type: ignore[attr-defined]
    refuse, breaks = _server.count % 5 == 0, _server.count % 3 == 0  # type: ignore[attr-defined]
    await send(
        {"type": "http.response.start", "status": 429 if refuse else 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    events = b"" if refuse else b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[],"usage":{"completion_tokens":4}}\n\n'
    await send({"type": "http.response.body", "body": events + (b"" if breaks or refuse else b"data: [DONE]\n\n")})


_server.count = 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("rate", [None, 40.0])
def test_both_loops_see_answers_refusals_and_broken_streams(rate: float | None) -> None:
    sock = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(_server, log_level="error", lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([sock])), daemon=True)
    thread.start()
    try:
        found = figures(
            measure(f"http://127.0.0.1:{sock.getsockname()[1]}", Load(rate=rate, seconds=0.6, warm_up_s=0.1, tokens=4))
        )
    finally:
        server.should_exit = True
        thread.join()
    assert found["answered"] > 0 and found["refused"] > 0 and found["failed"] > 0
    assert found["requests"] == found["answered"] + found["refused"] + found["failed"]


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        measure("http://127.0.0.1:9", Load(seconds=0.1, warm_up_s=0.0))
