"""`policyloop collect` and `trace REQUEST_ID` as somebody types them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from policyloop.cli import main
from policyloop.journal import Feedback, JournalSettings
from policyloop.journal.writer import Journal


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with one wrong answer and what it should have been."""
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    uri = str(tmp_path / "store")
    with Journal(JournalSettings(folder=str(tmp_path / "journal"), store=uri)) as journal:
        row = {
            "prompt": "7+8=",
            "text": "14",
            "model": "m",
            "version": "m@1",
            "key": "k",
            "user": "ann",
            "token_ids": [1],
            "logprobs": [-1.0],
        }
        journal.append({"request_id": "r1", "at": time.time(), **row})
        journal.append(Feedback(request_id="r1", at=time.time(), key="k", kind="answer", value="15"))
    return uri


def run(*arguments: str, capsys: Any) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out + said.err


def test_stats_curate_trace_forget(store: str, tmp_path: Path, capsys: Any) -> None:
    code, said = run("collect", "stats", "--store", store, capsys=capsys)
    assert code == 0 and "prompts wrong: 1" in said and "new since the last set: 1" in said
    code, said = run(
        "collect", "curate", "--store", store, "--out", str(tmp_path / "set"), "--set", "per_voice=50", capsys=capsys
    )
    assert code == 0 and "set feedback@1" in said
    assert json.loads((tmp_path / "set" / "prompts.jsonl").read_text())["answer"] == "15"
    code, said = run("trace", "r1", "--store", store, capsys=capsys)
    assert code == 0 and "answered by m@1 (serve): '14'" in said and "in sets: feedback@1" in said and 'answer "15"' in said
    code, said = run("collect", "forget", "--user", "ann", "--store", store, capsys=capsys)
    assert code == 0 and "feedback@1 is deleted; nothing was left of it" in said
    assert run("trace", "r1", "--store", store, capsys=capsys)[0] == 2


def test_nothing_to_learn_is_a_no(tmp_path: Path, capsys: Any) -> None:
    code, said = run("collect", "curate", "--store", str(tmp_path / "store"), capsys=capsys)
    assert code == 3 and "no request has feedback" in said


@pytest.mark.parametrize(
    "arguments", [("curate", "--set", "typo=1"), ("stats", "--set", "days=0"), ("curate", "--held-out", "nowhere")]
)
def test_a_wrong_word_is_told(arguments: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    code, said = run("collect", *arguments, "--store", str(tmp_path / "store"), capsys=capsys)
    assert code == 2 and "Traceback" not in said
