"""Answers that a run kept are trained on again: the same bits in the file, the same order, the same run after a stop."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from policyloop.collect.curate import parquet
from policyloop.errors import BadInput
from policyloop.recipe import from_tree, plan
from policyloop.rollout.replay import encode, read
from policyloop.run import Run, start
from policyloop.types import Completion, Group, Message, Prompt, Score

CORRECTION = {"correction": {"importance": {}}}


def digits(completions: list[str]) -> list[float]:
    """A reward with a spread from the first step on: the share of digits."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def tree(steps: int = 2, strategy: dict[str, Any] | None = None, **rollout: Any) -> dict[str, Any]:
    return {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
        "data": {"task": "tiny_arithmetic"},
        "rewards": {"terms": [{f"{Path(__file__)}:digits": {}}]},
        "rl_strategy": {"type": "grpo", "group_size": 4, "kl": None, **(strategy or {})},
        "training": {
            "steps": steps,
            "prompts_per_step": 2,
            "lr": 1e-3,
            "save_steps": 1,
            "threads": 1,
            "precision": "fp32",
            "signal_check": None,
        },
        "rollout": {"max_new_tokens": 8, **rollout},
        "evaluation": {"every": 0},
    }


def run(folder: Path, said: list[str] | None = None, **changes: Any) -> Run:
    return start(from_tree(tree(**changes)), folder, resume="auto", say=(said if said is not None else []).append)


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in rows]


def weights(made: Run) -> bytes:
    return (made.policy_path / "model.safetensors").read_bytes()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "run"
    run(folder, steps=2, save=True).close()
    return folder


def test_what_a_step_trained_on_is_kept_in_the_columns_of_the_journal(kept: Path) -> None:
    files = sorted((kept / "rollouts").iterdir())
    assert [f.name for f in files] == ["00000001.parquet", "00000002.parquet"]
    rows = pq.read_table(files[1]).to_pylist()
    samples = [json.loads(line) for line in (kept / "samples" / "00000002.jsonl").read_text().splitlines()]
    shown = [(s, c) for s in samples for c in s["completions"]]
    assert len(rows) == len(shown) == 2 * 4
    for row, (group, answer) in zip(rows, shown, strict=True):
        assert (row["source"], row["redacted"], row["version"]) == ("rollout", False, "run#1")
        assert (row["group"], row["prompt_id"], row["target"]) == (group["uid"], group["prompt_id"], group["target"])
        assert (row["text"], row["token_ids"], row["reward"]) == (answer["text"], answer["token_ids"], answer["reward"])
        assert row["logprobs"] == pytest.approx(answer["logprobs"]) and json.loads(row["sampling"])["max_new_tokens"] == 8
        assert json.loads(row["components"]) == answer["components"]


def test_a_file_gives_back_the_groups(tmp_path: Path) -> None:
    chat = Prompt.make("t", (Message("user", "2+3=?"),), "5", {"level": 1})
    plain = Prompt.make("t", "1+1=", "2")
    answers = (
        Completion((1, 2), (3, 4, 5), (-0.5, -0.25, -1.0), "stop", "a#3", "5", (1, 0, 1)),
        Completion((1, 2), (6,), (-2.0,), "length", "a#3", "6"),
    )
    unknown = Completion((9,), (8,), (math.nan,), "stop", "a#3", "x")
    groups = [
        Group("u/0/0", chat, answers, (Score(1.0, {"r": 1.0}, 1.0), Score(None, {"r": math.nan}))),
        Group("v/0/0", plain, (answers[0], unknown)),
    ]
    (tmp_path / "f.parquet").write_bytes(encode(groups))
    found = read(tmp_path / "f.parquet")
    assert [g.prompt for g in found.groups] == [chat, plain] and [g.uid for g in found.groups] == ["u/0/0", "v/0/0"]
    assert found.groups[0].completions == answers and found.groups[1].completions == answers[:1]
    assert [s.value for s in found.groups[0].scores] == [1.0, None] and not found.judged and found.left_out == 1


def test_replaying_is_the_same_run_whether_it_was_stopped_or_not(kept: Path, tmp_path: Path) -> None:
    said: list[str] = []
    again = {"strategy": CORRECTION, "replay": str(kept / "rollouts")}
    whole = run(tmp_path / "run", said, steps=3, **again)
    assert "replay: 16 recorded answers to 4 prompts, scored again" in said
    first = run(tmp_path / "other" / "run", steps=1, **again)
    first.close()
    resumed = run(tmp_path / "other" / "run", steps=3, **again)
    assert weights(whole) == weights(resumed)
    assert metrics(tmp_path / "run") == metrics(tmp_path / "other" / "run")
    rows = metrics(tmp_path / "run")
    assert all(row["policy_version_lag"] is None for row in rows) and rows[0]["reward/std"] > 0
    old = {tuple(r["token_ids"]): r["logprobs"] for f in (kept / "rollouts").iterdir() for r in pq.read_table(f).to_pylist()}
    sample = json.loads((tmp_path / "run" / "samples" / "00000003.jsonl").read_text().splitlines()[0])
    assert all(c["logprobs"] == pytest.approx(old[tuple(c["token_ids"])]) for c in sample["completions"])
    whole.close()
    resumed.close()


def test_later_files_go_when_a_run_goes_back(tmp_path: Path) -> None:
    from policyloop.training.folder import RunFolder

    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.rollouts(step, b"x")
    folder.cut(1)
    assert [p.name for p in (tmp_path / "rollouts").iterdir()] == ["00000001.parquet"]


def served(n: int, value: float, prompt: str) -> dict[str, Any]:
    ids = {"prompt_token_ids": [5, 6], "token_ids": [7 + n, 8], "logprobs": [-1.0, -0.5]}
    return {
        "request_id": f"r{n}",
        "prompt_id": prompt,
        "version": "m@2",
        "sampling": {},
        "finish_reason": "stop",
        "value": value,
        **ids,
    }


def test_a_curated_set_is_trained_on_with_the_values_that_people_gave(tmp_path: Path) -> None:
    file = tmp_path / "offpolicy.parquet"
    file.write_bytes(parquet([served(0, 1.0, "a"), served(1, 0.0, "b"), served(2, 0.0, "a"), served(3, 0.5, "b")]))
    found = read(file)
    assert found.judged and [[s.value for s in g.scores] for g in found.groups] == [[1.0, 0.0], [0.0, 0.5]]
    said: list[str] = []
    made = run(tmp_path / "run", said, steps=1, strategy=CORRECTION, replay=str(file))
    made.close()
    assert "replay: 4 recorded answers to 2 prompts, with the values of the file" in said
    assert metrics(tmp_path / "run")[0]["reward/mean"] == pytest.approx(1.5 / 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "rl_strategy.correction"),
        ({"strategy": CORRECTION, "save": True}, "rollout.save"),
        ({"strategy": CORRECTION, "allocation": {"samples": "growing"}}, "rollout.allocation"),
        ({"strategy": {"type": "dapo", **CORRECTION}}, "filter.drop_constant.batches"),
        ({"strategy": {"type": "sft", "group_size": 1}}, "learns from scored answers"),
    ],
)
def test_recipes_that_cannot_replay_are_refused(changes: dict[str, Any], said: str) -> None:
    made = tree(replay="x", **changes)
    if made["rl_strategy"]["type"] == "sft":
        made["rl_strategy"] = {"type": "sft"}
    with pytest.raises(BadInput, match=said):
        from_tree(made)


def test_files_that_cannot_be_replayed_are_refused(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(BadInput, match="holds no Parquet file"):
        read(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="is no Parquet file"):
        read(tmp_path / "bad.parquet")
    pq.write_table(pq.read_table(kept / "rollouts" / "00000001.parquet").drop(["logprobs"]), tmp_path / "less.parquet")
    with pytest.raises(BadInput, match="no column logprobs"):
        read(tmp_path / "less.parquet")
    prompt = read(kept / "rollouts").groups[0].prompt.id
    with pytest.raises(BadInput, match="held out"):
        read(kept / "rollouts", {prompt})


def test_the_plan_knows_that_nothing_is_sampled() -> None:
    planned = plan(from_tree(tree(replay="x", strategy=CORRECTION)), 8)
    assert "sampling" not in planned.passes and planned.tokens_per_step is None
