"""Rounds with the real tiny model and a real store: the first from data, the next from feedback, cut short and gone on with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from policyloop.journal import Feedback, JournalSettings
from policyloop.journal.writer import Journal
from policyloop.rounds import Improver, load_improve
from policyloop.store import open_store
from policyloop.store.moves import rollback
from policyloop.training.folder import RunFolder

SFT = """
model: {base_model_path: tiny, lora: null, template: plain}
data: {task: tiny_arithmetic, options: {demonstrations: 64}}
rl_strategy: {type: sft}
training: {steps: 2, batch_size: 8, lr: 1e-3, threads: 1, precision: fp32}
rollout: {max_new_tokens: 8, samples: 0}
evaluation: {every: 2, prompts: 8, temperature: 1.0}
"""
RL = """
model: {base_model_path: tiny, lora: null, template: plain}
data: {task: tiny_arithmetic}
rl_strategy: {type: grpo, group_size: 2, kl: null}
training: {steps: 1, prompts_per_step: 2, lr: 1e-4, threads: 1, precision: fp32, signal_check: null}
rollout: {max_new_tokens: 8}
evaluation: {every: 1, prompts: 8, temperature: 1.0}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sft.yaml").write_text(SFT)
    (tmp_path / "rl.yaml").write_text(RL)

    def made(**more: Any) -> Improver:
        tree = {
            "name": "arith",
            "store": str(tmp_path / "store"),
            "runs": str(tmp_path / "runs"),
            "stages": [{"name": "sft", "recipe": "sft.yaml"}, {"name": "rl", "recipe": "rl.yaml"}],
            "triggers": {"evidence": 3},
            "cooldown_s": 0.0,
            "budget": {"rounds_per_day": None},
            **more,
        }
        (tmp_path / "improve.yaml").write_text(json.dumps({"improve": tree}))
        return Improver(load_improve(tmp_path / "improve.yaml"), lambda line: None)

    return made


def feedback(tmp_path: Path, n: int = 3) -> list[str]:
    with Journal(JournalSettings(folder=str(tmp_path / "journal"), store=str(tmp_path / "store"))) as journal:
        for i in range(n):
            journal.append(
                {"request_id": f"r{i}", "prompt": f"{i}+1+1+1=", "text": "#9", "model": "arith", "key": "k", "at": time.time()}
            )
            journal.append(Feedback(request_id=f"r{i}", at=time.time(), key="k", kind="answer", value=str(i + 3)))
    return [f"r{i}" for i in range(n)]


def test_from_data_to_a_version_then_from_feedback_to_the_next(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    improver = world()
    first = improver.once()
    assert first is not None and first["end"]["outcome"] == "kept" and "curate" not in first
    store = open_store(str(tmp_path / "store"))
    assert store.state("arith").stable == 1
    assert store.version("arith", 1).lineage["config"]["model"]["base_model_path"] == first["train-sft"]["run"]
    assert improver.once() is None  # nothing new was said

    requests = feedback(tmp_path)
    crashing = world(force_gate=True)
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(Improver, "register", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        crashing.once()
    trained = (tmp_path / "runs" / "arith-2-rl" / "metrics.jsonl").stat().st_mtime_ns
    second = world(force_gate=True).once()  # another process, as it were
    assert second is not None and second["end"]["outcome"] == "kept" and second["trigger"]["reason"].startswith("evidence: 3")
    assert (tmp_path / "runs" / "arith-2-rl" / "metrics.jsonl").stat().st_mtime_ns == trained  # not trained twice

    version = store.version("arith", 2)
    config = version.lineage["config"]
    assert store.state("arith").stable == 2 and config["data"]["options"]["set"] == second["curate"]["set"] == "feedback@1"
    assert config["rl_strategy"]["kl"]["coef"] == 0.02 and version.lineage["parent"] == "arith@1"
    datasets = store.on("datasets")
    rows = [json.loads(line) for line in datasets.read(datasets.resolve("feedback@1"), "prompts.jsonl").splitlines()]
    assert sorted(r for row in rows for r in row["requests"]) == requests
    learnt = next(r for r in RunFolder(tmp_path / "runs" / "arith-2-rl").rows("events.jsonl") if r["kind"] == "sources")
    assert learnt["data"][0]["prompts"] == 6  # three from feedback, three replayed
    assert store.report("arith", second["gate"]["report"])["verdict"] == second["gate"]["verdict"]
    rollback(store, "arith", by="test", reason="test")
    assert store.state("arith").stable == 1


def test_what_the_gate_holds_is_not_released(world: Any, tmp_path: Path) -> None:
    held = world(stages=[{"name": "sft", "recipe": "sft.yaml", "set": ["evaluation.gate.min_accuracy=1.0"]}]).once()
    assert held is not None and held["gate"]["verdict"] == "HOLD" and "release" not in held
    assert held["end"]["outcome"] == "held by the gate" and open_store(str(tmp_path / "store")).state("arith").stable is None
