"""The same API in front of another OpenAI server; here the other server is our own, on another port. And vLLM's command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served

from policyloop.errors import NotFound
from policyloop.serve import ServeSettings
from policyloop.serve.http import HttpBackend
from policyloop.serve.vllm import VllmBackend

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def front(server: Served) -> Iterator[Served]:
    def backend(settings: ServeSettings) -> HttpBackend:
        return HttpBackend(server.url + "/v1", "front", settings)

    with Served("", backend=backend) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "9-3=", "n": 2, "logprobs": 0}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "9-3="}], "n": 2, "logprobs": True}),
    ],
)
def test_answers_are_those_of_the_engine_behind(server: Served, front: Served, path: str, body: dict[str, Any]) -> None:
    asked = {**body, "seed": 3, "max_tokens": 9}
    behind, before = server.ask(path, asked).json(), front.ask(path, asked).json()
    assert before["model"] == "front" and before["version"] == behind["version"]
    assert before["choices"] == behind["choices"] and before["usage"] == behind["usage"]
    assert front.events(path, asked)[-1] == "[DONE]"


def test_refusals_behind_are_passed_on_and_a_client_that_leaves_frees_the_slot_behind(server: Served, front: Served) -> None:
    got = front.ask(TEXT, {"prompt": "1+" * 300, "max_tokens": 5})
    assert got.status_code == 400 and "601 tokens" in got.json()["error"]["message"]
    got = front.ask("/v1/completions", {"prompt": "9", "presence_penalty": 1.0})
    assert got.status_code == 400 and "presence_penalty" in got.json()["error"]["message"]
    with front.http.stream("POST", TEXT, json={"prompt": "9", "max_tokens": 250, "ignore_eos": True, "stream": True}) as reply:
        next(reply.iter_lines())
    server.until(server.idle)
    front.until(front.idle)
    assert server.records[-1]["finish_reason"] == "abort"


def test_an_engine_that_is_not_there_is_said_so() -> None:
    backend = HttpBackend("http://127.0.0.1:9/v1", "x", ServeSettings(), start_s=0)
    with pytest.raises(Exception, match="cannot be asked"):
        asyncio.run(backend.start())


def test_vllm_keeps_the_bundle_s_sampling_and_is_missed_by_name() -> None:
    backend = VllmBackend(
        Path("models/arith"), "arith", ServeSettings(engine="vllm"), {"temperature": 0.7}, ("vllm-that-is-not-here",)
    )
    command = backend.command(8123)
    assert command[1:3] == ["serve", "models/arith"] and command[command.index("--generation-config") + 1] == "vllm"
    assert command[command.index("--logprobs-mode") + 1] == "processed_logprobs" and backend.defaults == {"temperature": 0.7}
    with pytest.raises(NotFound, match="vllm is not installed"):
        asyncio.run(backend.start())
