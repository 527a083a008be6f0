"""Right against wrong answers of the same prompt, from what a run sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.pairing import pairs_of_group, write_pairs
from policyloop.tasks.reading import Record
from policyloop.types import Message


def answer(text: str, metric: float | None, finish: str = "stop", reward: float | None = None) -> dict[str, Any]:
    return {"text": text, "metric": metric, "reward": metric if reward is None else reward, "finish_reason": finish}


GROUP = {
    "prompt": "2+3?",
    "messages": [{"role": "user", "content": "2+3?"}],
    "completions": [
        *(answer("5", 1.0), answer("6", 0.0), answer("five", 1.0, reward=0.8), answer("7", 0.0), answer("6", 0.0)),
        *(answer("no idea", None), answer("5 and then", 1.0, "length"), answer(" ", 0.0)),
    ],
}


def test_pairs_show_as_many_answers_as_possible_first() -> None:
    found = [(r["chosen"], r["rejected"]) for r in pairs_of_group(Record(GROUP, "x line 1"))]
    assert found == [("5", "6"), ("five", "7"), ("5", "7"), ("five", "6")]


def test_a_group_without_both_kinds_gives_none() -> None:
    assert list(pairs_of_group(Record({"prompt": "q", "completions": [answer("a", 0.0), answer("b", 0.0)]}, "x"))) == []


def test_a_run_s_samples_become_a_file_that_the_task_reads(tmp_path: Path) -> None:
    samples = tmp_path / "run" / "samples"
    samples.mkdir(parents=True)
    for step in (1, 2):  # the same answers twice are one pair
        (samples / f"{step:08d}.jsonl").write_text(json.dumps(GROUP) + "\n")
    out = tmp_path / "pairs.jsonl"
    assert write_pairs(str(tmp_path / "run"), str(out), per_prompt=2) == (2, 2)
    prompts = load_task(DataSettings(task="preference", path=str(out), held_out_share=0.0), 0).train()
    assert prompts[1].messages == (Message("user", "2+3?"),)
    assert (prompts[1].meta["chosen"], prompts[1].meta["rejected"], prompts[1].meta["score_chosen"]) == ("five", "7", 0.8)


def test_parquet_rows_are_read_alike(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([GROUP]), tmp_path / "rollouts.parquet")
    assert write_pairs(str(tmp_path / "rollouts.parquet"), str(tmp_path / "out.jsonl")) == (1, 1)


def test_nothing_is_written_where_there_is_nothing_to_pair(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "q", "completions": [answer("a", 1.0)]}) + "\n")
    with pytest.raises(BadInput, match="none of 1 sampled prompts has both"):
        write_pairs(str(tmp_path / "a.jsonl"), str(tmp_path / "out.jsonl"))
    (tmp_path / "b.jsonl").write_text('{"prompt": "q"}\n')
    with pytest.raises(BadInput, match="no sampled completions"):
        write_pairs(str(tmp_path / "b.jsonl"), str(tmp_path / "out.jsonl"))
    with pytest.raises(BadInput, match="has no samples"):
        write_pairs(str(tmp_path), str(tmp_path / "out.jsonl"))
    assert not (tmp_path / "out.jsonl").exists()
