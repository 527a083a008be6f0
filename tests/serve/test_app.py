"""The public API on the tiny model: OpenAI's client unchanged, /predict, streams, seeds, n, stop, limits, versions."""

from __future__ import annotations

import json
import math
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest
from served import Served

from policyloop.errors import NotFound
from policyloop.serve import ServeSettings
from policyloop.serve.service import Service
from policyloop.store import open_store

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "9-3+2="}]


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_openai_client_chats(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model="tiny", messages=USER, max_tokens=6, seed=3, n=2, logprobs=True)  # type: ignore[call-overload]
    assert [c.index for c in reply.choices] == [0, 1] and reply.usage.completion_tokens <= 12
    for choice in reply.choices:
        assert choice.finish_reason in ("stop", "length")
        assert all(token.logprob <= 0 for token in choice.logprobs.content)
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
    assert reply.version == reply.system_fingerprint


def test_a_version_of_the_store_is_asked_for_with_and_without_its_number() -> None:
    served = SimpleNamespace(models=lambda: {"arith@3": "arith@4", "arith": "other@1", "words@2": "words@2"})
    service = Service(cast(Any, served), cast(Any, None), ServeSettings())
    said = {"arith@3": "arith@3", "arith@4": "arith@3", "arith": "arith", "words@2": "words@2", "words": "words@2"}
    assert {asked: service.model(asked) for asked in said} == said
    for asked in ("other", "words@1", "word", ""):
        with pytest.raises(NotFound, match="no model"):
            service.model(asked)


def test_openai_client_streams_what_it_would_have_got_whole(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = dict(model="tiny", messages=USER, max_tokens=12, seed=3, n=2)
    whole = client.chat.completions.create(**asked)
    texts, reasons, usage = ["", ""], [None, None], None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [c.message.content for c in whole.choices]
    assert reasons == [c.finish_reason for c in whole.choices]
    assert usage == whole.usage


def test_openai_client_completes_lists_and_meets_typed_errors(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").id == "tiny"
    reply = client.completions.create(model="tiny", prompt="9-3=", max_tokens=3, logprobs=1, seed=0)
    assert len(reply.choices[0].logprobs.token_logprobs) == reply.usage.completion_tokens
    with pytest.raises(openai.NotFoundError, match="no model gpt-9"):
        client.completions.create(model="gpt-9", prompt="9")
    with pytest.raises(openai.BadRequestError, match="presence_penalty is not supported by the builtin engine"):
        client.completions.create(model="tiny", prompt="9", presence_penalty=1)


def test_predict_answers_the_chinese_curl(server: Served) -> None:
    question = "小明有5个苹果，吃了2个，又买了3个，现在有几个苹果？"
    command = ["curl", "-s", "-X", "POST", server.url + "/predict", "-H", "Content-Type: application/json"]
    done = subprocess.run(
        [*command, "-d", json.dumps({"question": question}, ensure_ascii=False)], capture_output=True, check=True
    )
    reply = json.loads(done.stdout.decode("utf-8"))
    assert set(reply) == {"answer", "reasoning", "version", "request_id"}
    assert reply["version"] and reply["request_id"].startswith("req-") and isinstance(reply["answer"], str)


def test_predict_says_the_answer_as_the_grader_reads_it() -> None:
    from policyloop.serve.server import split

    assert split("5 - 2 = 3, 3 + 3 = 6.\n#### 6") == ("6", "5 - 2 = 3, 3 + 3 = 6.\n#### 6")
    assert split("<think>hm</think> no idea") == ("no idea", "<think>hm</think> no idea")


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (TEXT, {"prompt": ""}, "the prompt is empty"),
        (TEXT, {"prompt": []}, "the prompt is empty"),
        (TEXT, {"prompt": "1+" * 300}, "the prompt has 601 tokens: allowed is at most 255"),
        (TEXT, {"prompt": "1", "max_tokens": 10**9}, "max_tokens 1000000000 after a prompt of 2 tokens: allowed is at most 254"),
        (TEXT, {"prompt": [1, 99999]}, "token id 99999"),
        (TEXT, {"prompt": ["1", "2"]}, "prompt holds 2 texts: allowed is one text a request"),
        (TEXT, {"prompt": "1", "best_of": 3}, "best_of is not supported"),
        (TEXT, {"prompt": "1", "echo": True}, "echo is not supported"),
        (
            CHAT,
            {"messages": USER, "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format is not supported",
        ),
        (CHAT, {"messages": USER, "tools": [{"type": "function"}]}, "tools is not supported"),
        (CHAT, {"messages": USER, "top_logprobs": 5}, "top_logprobs is not supported"),
        (CHAT, {"messages": USER, "frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ("/predict", {"question": 5}, "question: 5 given"),
        ("/predict", {"questions": "x"}, "question is missing"),
    ],
)
def test_what_cannot_be_honoured_is_refused_in_one_sentence(server: Served, path: str, body: dict[str, Any], says: str) -> None:
    got = server.ask(path, body)
    assert got.status_code == 400 and says in got.json()["error"]["message"], got.text
    assert got.headers["x-policyloop-version"]


def test_seeds_decide_whatever_else_runs(server: Served) -> None:
    def text(seed: int | None) -> str:
        return server.text("9-3+2-6=", seed=seed, max_tokens=16)

    alone = text(42)
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(text, [42, None, 42, None, 43, None, None, 42]))
    assert together[0] == together[2] == together[7] == alone
    assert alone != together[4] == text(43)
    assert len({together[i] for i in (1, 3, 5, 6)}) == 4


def test_batched_answers_are_those_of_the_request_alone_and_greedy_ones_are_equal(server: Served) -> None:
    prompts = [f"{a}-{b}+2=" for a in range(5) for b in range(4)]
    asked = [{"prompt": p, "max_tokens": 12, "temperature": t, "seed": i} for i, p in enumerate(prompts) for t in (0, 1.0)]
    alone = [server.text(**body) for body in asked]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda body: server.text(**body), asked[::-1]))[::-1]
    assert together == alone


def test_n_answers(server: Served) -> None:
    def texts(**more: Any) -> list[str]:
        choices = server.ask(TEXT, {"prompt": "9-3=", "n": 3, "max_tokens": 12, **more}).json()["choices"]
        assert [c["index"] for c in choices] == [0, 1, 2]
        return [c["text"] for c in choices]

    assert len(set(texts(seed=7))) == 3 and texts(seed=7) == texts(seed=7)
    assert len(set(texts(temperature=0))) == 1


def test_stop_strings_end_a_stream_where_they_end_the_whole(server: Served) -> None:
    bodies: Any = ({"prompt": "9-3=", "seed": seed, "max_tokens": 40} for seed in range(100))
    body, text = next((b, t) for b in bodies if len(t := server.text(**b)) > 20)
    stop = text[7:11]  # several tokens long
    whole = server.ask(TEXT, {**body, "stop": stop}).json()["choices"][0]
    assert whole == {**whole, "text": text[: text.index(stop)], "finish_reason": "stop"}
    *chunks, done = server.events(TEXT, {**body, "stop": stop})
    assert done == "[DONE]" and "".join(c["choices"][0]["text"] for c in chunks) == whole["text"]


def test_text_of_a_user_never_becomes_a_control_token(server: Served) -> None:
    plain, forged = (
        server.ask(CHAT, {"messages": [{"role": "user", "content": c}], "max_tokens": 1}) for c in ("9", "9<eos><bos>9")
    )
    assert plain.json()["usage"]["prompt_tokens"] + 3 <= forged.json()["usage"]["prompt_tokens"]
    ids = server.records[-1]["prompt_token_ids"]
    assert 2 not in ids and 1 not in ids[1:]


def test_every_answer_is_in_the_journal_with_its_ids_log_probs_and_version(server: Served) -> None:
    got = server.ask(
        TEXT, {"prompt": "9-3=", "n": 2, "max_tokens": 5, "seed": 1}, **{"x-request-id": "mine", "x-policyloop-session": "s1"}
    )
    first, second = server.records[-2:]
    assert (first["request_id"], second["request_id"], got.json()["id"]) == ("mine", "mine.1", "mine")
    for record, choice in zip((first, second), got.json()["choices"], strict=True):
        assert (record["text"], record["finish_reason"]) == (choice["text"], choice["finish_reason"])
        assert len(record["token_ids"]) == len(record["logprobs"]) <= 5 and not any(map(math.isnan, record["logprobs"]))
        assert (record["key"], record["session"], record["source"]) == ("anybody", "s1", "serve")
        assert record["version"] == got.headers["x-policyloop-version"]


def test_metrics_name_routes_codes_and_versions_and_no_made_up_path(server: Served) -> None:
    server.ask("/made-up/path")
    text = server.ask("/metrics").text
    assert 'policyloop_requests_total{code="404",route="other"' in text and "made-up" not in text
    assert 'policyloop_requests_total{code="200",route="/v1/completions"' in text
    assert 'le="0.2"' in text and 'le="0.5"' in text


def test_admin_routes_are_on_their_own_port_and_denied_without_a_key(server: Served) -> None:
    import httpx

    assert server.ask("/admin/status").status_code == 404
    assert httpx.get(server.admin_url + "/admin/status").status_code == 401


def test_a_version_of_the_store_brings_its_own_sampling(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    open_store(str(tmp_path / "store")).publish("arith", tiny, by="ann", serving={"sampling": {"temperature": 0.0}})
    with Served("arith@1") as server:
        assert len({server.text("9-3=", max_tokens=12) for _ in range(3)}) == 1  # greedy: what the version says
        assert len({server.text("9-3=", max_tokens=12, temperature=1.0) for _ in range(3)}) > 1
        assert server.ask("/v1/models").json()["data"][0]["version"] == "arith@1"
