"""Promises of the built-in engine: determinism, company-independent rows, publishing as a transaction, streams (H10, H11, H12, H13)."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from policyloop.engine import ENGINES, Delta, EngineSpec, Request, Weights
from policyloop.engine.builtin import BuiltinEngine
from policyloop.errors import BadInput, StaleVersion, Unavailable
from policyloop.models import ModelSettings
from policyloop.models.policy import digest, load_policy
from policyloop.models.tiny import make_tiny
from policyloop.types import Completion, SamplingParams

torch.set_num_threads(1)
DRAW = SamplingParams(max_new_tokens=16, temperature=1.0, seed=42)
GREEDY = replace(DRAW, temperature=0.0)
PROMPT = (1, 13, 14, 5, 15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(folder: Path) -> BuiltinEngine:
    made = BuiltinEngine.load(EngineSpec(str(folder), "run#0"))
    made.renderer.stop_ids = ()  # an untrained model stops by chance: let answers run to their limit
    return made


def ids(done: list[Completion]) -> list[tuple[int, ...]]:
    return [c.token_ids for c in done]


def crowd(n: int) -> list[Request]:
    """Other requests of all kinds and lengths."""
    return [
        Request(
            f"other{i}",
            tuple(4 + (i + j) % 19 for j in range(1 + i % 7)),
            SamplingParams(5 + 3 * (i % 5), top_k=i % 4, n=1 + i % 3, seed=i),
        )
        for i in range(n)
    ]


# --- sampling -------------------------------------------------------------------------------------------------------------------


def test_equal_requests_give_equal_bits(engine: BuiltinEngine) -> None:
    requests = [Request("q", PROMPT, replace(DRAW, n=3)), *crowd(6)]
    a, b = engine.run(requests), engine.run(requests)
    assert ids(a) == ids(b)
    assert [c.logprobs for c in a] == [c.logprobs for c in b]


def test_a_row_does_not_depend_on_its_company(folder: Path) -> None:
    """float32: the same tokens alone, in a crowd, at the end of the queue, in small batches and as one sample of a split group."""
    engine = BuiltinEngine.load(EngineSpec(str(folder), "v"))
    mine = Request("q", PROMPT, replace(DRAW, n=4))
    alone = engine.run([mine])
    assert ids(engine.run([mine, *crowd(9)])[:4]) == ids(alone)
    assert ids(engine.run([*crowd(9), mine])[-4:]) == ids(alone)
    small = BuiltinEngine.load(EngineSpec(str(folder), "v", options={"max_rows": 3, "max_kv_tokens": 70}))
    assert ids(small.run([*crowd(9), mine])[-4:]) == ids(alone)
    split = engine.run([replace(mine, params=replace(DRAW, n=1), first_sample=s) for s in range(4)])
    assert ids(split) == ids(alone)
    for a, b in zip(alone, split, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_seeds(engine: BuiltinEngine) -> None:
    """H11: a seed repeats, another seed differs, uids differ, samples differ."""
    one = Request("q", PROMPT, DRAW)
    first = ids(engine.run([one]))
    assert ids(engine.run([one, *crowd(3)])[:1]) == first
    assert ids(engine.run([replace(one, params=replace(DRAW, seed=43))])) != first
    assert ids(engine.run([replace(one, uid="r")])) != first


def test_several_samples(engine: BuiltinEngine) -> None:
    """H12: n answers, distinct draws at temperature 1, equal ones at 0."""
    assert len(set(ids(engine.run([Request("q", PROMPT, replace(DRAW, n=3))])))) == 3
    greedy = ids(engine.run([Request("q", PROMPT, replace(GREEDY, n=3))]))
    assert len(greedy) == 3 and len(set(greedy)) == 1


def test_temperature_0_is_greedy_alone_and_in_a_batch(engine: BuiltinEngine) -> None:
    """H10."""
    alone = ids(engine.run([Request("q", PROMPT, GREEDY)]))
    assert ids(engine.run([Request(f"q{i}", PROMPT, replace(GREEDY, seed=i)) for i in range(8)])) == alone * 8
    assert ids(engine.run([Request("q", PROMPT, replace(DRAW, top_k=1))])) == alone


def test_requests_are_refused_by_name(engine: BuiltinEngine) -> None:
    for prompt, params, word in [
        ((), DRAW, "empty"),
        ((1,) * 256, DRAW, "256 tokens"),
        ((1, 23), DRAW, "token id 23"),
        ((-1,), DRAW, "token id -1"),
        (PROMPT, replace(DRAW, n=0), "n 0"),
        (PROMPT, replace(DRAW, temperature=-1.0), "temperature"),
    ]:
        with pytest.raises(BadInput, match=word):
            engine.run([Request("q", PROMPT, DRAW), Request("bad", prompt, params)])
        with pytest.raises(BadInput, match=word):
            engine.stream(Request("bad", prompt, params))


def test_the_context_ends_an_answer(engine: BuiltinEngine) -> None:
    done = engine.run([Request("q", (5,) * 250, replace(DRAW, max_new_tokens=50, n=2))])
    assert [(len(c.token_ids), c.finish_reason) for c in done] == [(6, "length")] * 2


def test_a_group_larger_than_the_budget_is_split(folder: Path) -> None:
    engine = BuiltinEngine.load(EngineSpec(str(folder), "v", options={"max_rows": 4}))
    assert len(set(ids(engine.run([Request("q", PROMPT, replace(DRAW, n=11))])))) == 11


def test_stop_strings_end_rows_while_others_go_on(engine: BuiltinEngine) -> None:
    free = engine.run([Request("q", PROMPT, replace(DRAW, n=6))])
    stop = next(c.text for c in free if len(c.text) > 4)[2:4]
    for before, c in zip(free, engine.run([Request("q", PROMPT, replace(DRAW, n=6, stop=(stop,)))]), strict=True):
        assert c.token_ids == before.token_ids[: len(c.token_ids)]
        assert c.text == before.text.partition(stop)[0]
        assert (c.finish_reason == "stop") == (stop in before.text)


def test_options(folder: Path) -> None:
    with pytest.raises(BadInput, match="max_rows"):
        BuiltinEngine.load(EngineSpec(str(folder), "v", options={"rows": 3}))
    assert isinstance(ENGINES["builtin"](EngineSpec(str(folder), "v")), BuiltinEngine)


def test_broken_logits_end_in_an_error(engine: BuiltinEngine) -> None:
    engine.model.get_input_embeddings().weight[7] = math.nan  # type: ignore[union-attr, index]
    good, bad = engine.run([Request("good", PROMPT, replace(GREEDY, max_new_tokens=1)), Request("bad", (1, 7), DRAW)])
    assert (bad.finish_reason, bad.token_ids, good.finish_reason) == ("error", (), "length")


# --- weights --------------------------------------------------------------------------------------------------------------------


def weights(version: str, tensors: dict[str, Tensor], base: str, kind: str = "lora", scaling: float = 2.0) -> Weights:
    return Weights(version=version, kind=kind, tensors=tensors, base_digest=base, digest=digest(tensors), scaling=scaling)  # type: ignore[arg-type]


def adapter(seed: int, *names: str, rank: int = 4) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    modules = names or tuple(f"model.layers.{i}.self_attn.{x}_proj" for i in range(2) for x in "qv")
    a = {f"{m}.lora_A": torch.randn(rank, 96, generator=g) for m in modules}
    return a | {f"{m}.lora_B": torch.randn(96, rank, generator=g) * 0.05 for m in modules}


def heard(engine: BuiltinEngine) -> list[float]:
    return engine.score(PROMPT, (4, 9, 14, 22, 5))


def test_merging_is_the_base_plus_the_adapter(folder: Path, engine: BuiltinEngine) -> None:
    """Against peft's own unmerged forward."""
    policy = load_policy(ModelSettings(base_model_path=str(folder)), "fp32", "cpu", seed=0)
    for name, p in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    kind, tensors, scaling, base = policy.weights_tensors()
    before = heard(engine)
    ack = engine.publish(weights("run#1", tensors, base, kind, scaling))
    assert (ack.version, ack.digest) == ("run#1", digest(tensors))
    token_ids = (4, 9, 14, 22, 5)
    policy.causal.set_attn_implementation("eager")
    with torch.no_grad():
        logits = policy.causal(input_ids=torch.tensor([[*PROMPT, *token_ids]]), use_cache=False).logits[0, len(PROMPT) - 1 : -1]
    want = logits.log_softmax(-1).gather(1, torch.tensor(token_ids)[:, None])[:, 0].tolist()
    assert heard(engine) == pytest.approx(want, abs=1e-5)
    assert heard(engine) != pytest.approx(before, abs=1e-3)
    done = engine.run([Request("q", PROMPT, DRAW)])
    assert done[0].policy_version == engine.status().version == "run#1"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merge_and_unmerge_never_drift(folder: Path, dtype: str) -> None:
    """Bits of version 0 after twenty others, also where the modules change from version to version."""
    engine = BuiltinEngine.load(EngineSpec(str(folder), "run#0", dtype))
    zero = {name: torch.zeros_like(t) for name, t in adapter(0).items()}
    engine.publish(weights("run#0", zero, engine.base))
    start, drawn = heard(engine), engine.run([Request("q", PROMPT, replace(DRAW, n=4))])
    for n in range(1, 21):
        modules = () if n % 2 else ("model.layers.1.self_attn.o_proj",)
        engine.publish(weights(f"run#{n}", adapter(n, *modules), engine.base))
    assert heard(engine) != start
    engine.publish(weights("run#0", zero, engine.base))
    assert heard(engine) == start
    again = engine.run([Request("q", PROMPT, replace(DRAW, n=4))])
    assert [(c.token_ids, c.logprobs) for c in again] == [(c.token_ids, c.logprobs) for c in drawn]
    fresh = BuiltinEngine.load(EngineSpec(str(folder), "run#0", dtype))
    assert heard(fresh) == start  # an adapter of zeros is the base, to the bit


def test_full_weights(folder: Path, engine: BuiltinEngine, tmp_path: Path) -> None:
    other = BuiltinEngine.load(EngineSpec(str(make_tiny(tmp_path / "other", seed=5)), "o"))
    policy = load_policy(ModelSettings(base_model_path=str(tmp_path / "other"), lora=None), "fp32", "cpu", seed=0)
    _, tensors, _, _ = policy.weights_tensors()
    engine.publish(weights("run#1", tensors, engine.base, "full"))
    assert heard(engine) == heard(other)
    with pytest.raises(StaleVersion):
        engine.publish(weights("run#2", adapter(1), engine.base))  # its base is gone


def refused(change: Callable[[dict[str, Tensor]], None], kind: str = "lora") -> Callable[[BuiltinEngine], Weights]:
    def make(engine: BuiltinEngine) -> Weights:
        tensors = adapter(3) if kind == "lora" else {n: t.clone() for n, t in engine.copy.parameters.items()}
        change(tensors)
        return weights("run#9", tensors, engine.base, kind)

    return make


BAD = {
    "nan": refused(lambda t: t["model.layers.0.self_attn.q_proj.lora_B"].view(-1)[5:6].fill_(math.nan)),  # type: ignore[func-returns-value]
    "inf in full": refused(lambda t: t["model.norm.weight"][3:4].fill_(math.inf), "full"),  # type: ignore[func-returns-value]
    "strange module": refused(lambda t: t.update(adapter(1, "model.layers.7.self_attn.q_proj"))),
    "half an adapter": refused(lambda t: t.pop("model.layers.0.self_attn.q_proj.lora_B")),  # type: ignore[func-returns-value]
    "other shape": refused(lambda t: t.update({"model.layers.0.self_attn.q_proj.lora_B": torch.zeros(95, 4)})),
    "one missing": refused(lambda t: t.pop("model.norm.weight"), "full"),  # type: ignore[func-returns-value]
    "full, other shape": refused(lambda t: t.update({"model.norm.weight": torch.zeros(95)}), "full"),
    "damaged": lambda engine: replace(weights("run#9", adapter(3), engine.base), digest="0" * 64),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_publish_leaves_the_old_version(engine: BuiltinEngine, fault: str) -> None:
    engine.publish(weights("run#1", adapter(1), engine.base))
    before = heard(engine)
    with pytest.raises(ValueError, match="run#9"):
        engine.publish(BAD[fault](engine))
    assert heard(engine) == before
    assert engine.status().version == "run#1"
    assert engine.status().digest == digest(adapter(1))


def test_weights_of_another_base_are_stale(engine: BuiltinEngine) -> None:
    with pytest.raises(StaleVersion):
        engine.publish(weights("run#1", adapter(1), "another base"))


def test_an_adapter_folder_is_a_model(folder: Path, tmp_path: Path) -> None:
    policy = load_policy(ModelSettings(base_model_path=str(folder)), "fp32", "cpu", seed=0)
    for name, p in policy.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.05)
    policy.save(tmp_path / "adapter")
    kind, tensors, scaling, base = policy.weights_tensors()
    engine = BuiltinEngine.load(EngineSpec(str(folder), "run#0"))
    engine.publish(weights("run#1", tensors, base, kind, scaling))
    loaded = BuiltinEngine.load(EngineSpec(str(tmp_path / "adapter"), "mine"))
    assert heard(loaded) == heard(engine)
    assert loaded.status().version == "mine"


# --- streams --------------------------------------------------------------------------------------------------------------------


async def collect(engine: BuiltinEngine, request: Request) -> list[Delta]:
    return [d async for d in engine.stream(request)]


def joined(deltas: list[Delta], sample: int) -> tuple[tuple[int, ...], str, str | None]:
    mine = [d for d in deltas if d.sample == sample]
    assert [d.finish_reason is not None for d in mine] == [False] * (len(mine) - 1) + [True]
    return tuple(i for d in mine for i in d.token_ids), "".join(d.text for d in mine), mine[-1].finish_reason


def test_streams_say_what_run_says(engine: BuiltinEngine) -> None:
    """Many at once, n > 1, stop strings; every sample ends once, its deltas joined are its completion."""
    requests = [Request("q", PROMPT, replace(DRAW, n=3)), *crowd(6), Request("s", PROMPT, replace(DRAW, stop=("1", "so")))]
    want = iter(engine.run(requests))

    async def all_at_once() -> list[list[Delta]]:
        return await asyncio.gather(*(collect(engine, r) for r in requests))

    for request, deltas in zip(requests, asyncio.run(all_at_once()), strict=True):
        for sample in range(request.params.n):
            c = next(want)
            assert joined(deltas, sample) == (c.token_ids, c.text, c.finish_reason)
    engine.close()


def test_one_bad_request_hurts_nobody(engine: BuiltinEngine) -> None:
    """H13."""
    requests = [Request(f"q{i}", PROMPT if i != 2 else (1,) * 300, DRAW) for i in range(8)]

    async def one(request: Request) -> list[Delta]:
        return await collect(engine, request)

    async def all_at_once() -> list[list[Delta] | BaseException]:
        return await asyncio.gather(*map(one, requests), return_exceptions=True)

    done = asyncio.run(all_at_once())
    assert [isinstance(d, BadInput) for d in done] == [i == 2 for i in range(8)]
    assert all(len(joined(d, 0)[0]) == 16 for d in done if isinstance(d, list))
    engine.close()


def test_closing_a_stream_frees_its_slot(engine: BuiltinEngine) -> None:
    async def leave() -> None:
        stream = engine.stream(Request("q", PROMPT, replace(DRAW, max_new_tokens=200, n=4)))
        await anext(stream)
        while engine.status().running < 4:
            await asyncio.sleep(0.001)
        assert engine.status().kv_used_ratio > 0
        await stream.aclose()  # type: ignore[attr-defined]
        while engine.status().running:
            await asyncio.sleep(0.001)
        assert len(await collect(engine, Request("r", PROMPT, DRAW))) >= 1
        while engine.status().running or engine.status().kv_used_ratio:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(leave(), 20))
    assert engine.status().waiting == 0
    engine.close()


def test_an_answer_has_one_version(engine: BuiltinEngine) -> None:
    """A publish in the middle of a stream: the running answer ends as it began, the next one is the new version's."""
    want = engine.run([Request("q", PROMPT, replace(DRAW, max_new_tokens=60))])[0]

    async def publish_meanwhile() -> list[Delta]:
        deltas = []
        async for delta in engine.stream(Request("q", PROMPT, replace(DRAW, max_new_tokens=60))):
            if not deltas:
                thread = threading.Thread(target=engine.publish, args=(weights("run#1", adapter(1), engine.base),))
                thread.start()
                late = asyncio.create_task(collect(engine, Request("q", PROMPT, DRAW)))
            deltas.append(delta)
        after = await late
        thread.join()
        assert {d.version for d in after} <= {"run#0", "run#1"} and len({d.version for d in after}) == 1
        return deltas

    deltas = asyncio.run(asyncio.wait_for(publish_meanwhile(), 20))
    assert {d.version for d in deltas} == {"run#0"}
    assert joined(deltas, 0)[0] == want.token_ids
    assert engine.status().version == "run#1"
    engine.close()


def test_close_drains_or_aborts(engine: BuiltinEngine) -> None:
    async def closing(drain_s: float) -> str | None:
        task = asyncio.create_task(collect(engine, Request("q", PROMPT, replace(DRAW, max_new_tokens=240))))
        while not engine.status().running:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close, drain_s)
        return (await task)[-1].finish_reason

    assert asyncio.run(asyncio.wait_for(closing(0.0), 20)) == "abort"
    with pytest.raises(Unavailable):
        asyncio.run(collect(engine, Request("q", PROMPT, DRAW)))


def test_close_with_time_lets_answers_end(engine: BuiltinEngine) -> None:
    async def closing() -> str | None:
        task = asyncio.create_task(collect(engine, Request("q", PROMPT, DRAW)))
        while not (engine.status().running or task.done()):
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.close, 10.0)
        return (await task)[-1].finish_reason

    assert asyncio.run(asyncio.wait_for(closing(), 20)) == "length"


def test_a_failing_step_ends_its_requests_and_nothing_else(engine: BuiltinEngine) -> None:
    honest = engine.model.forward

    def fails(*args: object, **kwargs: object) -> object:
        raise RuntimeError("out of memory")

    engine.model.forward = fails  # type: ignore[method-assign, assignment]
    assert asyncio.run(collect(engine, Request("q", PROMPT, DRAW)))[-1].finish_reason == "error"
    engine.model.forward = honest  # type: ignore[method-assign]
    assert asyncio.run(collect(engine, Request("q", PROMPT, DRAW)))[-1].finish_reason == "length"
    engine.close()
