"""The report of a real (small) run folder: self-contained, with the numbers in it; one group in the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyloop.errors import BadInput, NotFound
from policyloop.evaluation.report import explain, groups_of, pick_group, write_report
from policyloop.training.folder import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder.create(tmp_path / "run", {"training": {"lr": 1e-4}}, {"name": "run"})
    folder.event("baseline", 0, limit_tokens=32, accuracy=0.17, accuracy_low=0.11, accuracy_high=0.25, n=96, length_mean=28.0)
    for step in (1, 2):
        folder.metrics({"step": step, "reward/mean": 0.1 * step, "length/mean": 20.0, "groups/signal_frac": 0.5, "entropy": 1.0})
        answer = {"token_ids": [5], "finish_reason": "stop", "version": "run#0", "keep": True, "length": 1, "metric": 1.0}
        good = {
            **answer,
            "text": "7",
            "tokens": ["7"],
            "logprobs": [-1.0],
            "logprobs_after": [-0.5],
            "reward": 1.0,
            "components": {"correct": 1.0},
            "advantage": 0.7,
        }
        bad = {
            **answer,
            "text": "<b>8",
            "tokens": ["<b>8"],
            "logprobs": [-1.0],
            "logprobs_after": [-1.5],
            "reward": 0.0,
            "components": {"correct": 0.0},
            "advantage": -0.7,
        }
        row = {"step": step, "uid": "p/0/0", "prompt_id": "p", "prompt": "3 + 4?", "target": "7", "completions": [bad, good]}
        folder.samples(step, [row])
    folder.metrics(
        {
            "step": 3,
            "eval/accuracy": 0.8,
            "eval/accuracy_low": 0.7,
            "eval/accuracy_high": 0.87,
            "eval/length_mean": 15.0,
            "reward/mean": 0.6,
        }
    )
    folder.event("guard", 3, sentence="grad_norm is 2, the limit is 1.5: lower training.lr")
    folder.unlock()
    return folder.path


def test_one_page_without_network(run: Path) -> None:
    page = write_report([run], run / "report.html").read_text(encoding="utf-8")
    assert "src=" not in page and "href=" not in page.replace('xlink:href="#', "").replace('href="#', "")
    for part in ("0.170 [0.110, 0.250]", "0.800 [0.700, 0.870]", "3 + 4?", "grad_norm is 2", "&lt;b&gt;8", "+0.500 nats", "<svg"):
        assert part in page, part
    assert "<b>8" not in page


def test_several_runs_on_one_page(run: Path) -> None:
    assert write_report([run, run], run / "both.html").exists()


def test_a_group_in_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain(run, 2, "0")
    out = capsys.readouterr().out
    assert "right answer: 7" in out and "+0.70" in out and "-0.50" in out


def test_what_is_not_there_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no run"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(NotFound, match=r"no samples of step 9.*1 to 2"):
        groups_of(run, 9)
    with pytest.raises(NotFound, match="no prompt zzz"):
        pick_group(groups_of(run, 1), "zzz")
    empty = RunFolder.create(tmp_path / "empty", {}, {})
    empty.unlock()
    with pytest.raises(BadInput, match="has not finished a step"):
        write_report([tmp_path / "empty"], tmp_path / "r.html")
    assert json.loads((run / "manifest.json").read_text()) == {"name": "run"}
