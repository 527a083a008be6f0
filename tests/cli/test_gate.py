"""`policyloop gate` as a user meets it: frozen items, the store's versions, contamination."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from policyloop.cli import main
from policyloop.models.tiny import make_tiny
from policyloop.store import open_store


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def ask(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


COMMON = ("--template", "plain", "--max-new-tokens", "6", "--set", "evaluation.gate.max_format_errors=1.0")


def test_items_are_frozen_once_and_the_report_is_kept_with_the_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(None)
    store.publish("m", make_tiny(tmp_path / "one"), by="t")
    store.publish("m", make_tiny(tmp_path / "two", seed=1), by="t")
    suite = ("--suite", "t.suite.jsonl")
    kl = ("--set", "evaluation.gate.max_kl=0.0")
    assert ask("gate", "m@2", "m@1", "--task", "tiny_arithmetic", "--prompts", "5", *suite, *COMMON, *kl) == 3
    out = capsys.readouterr().out
    assert "froze 5 items" in out and "HOLD  KL to stable" in out and "kept with m@2" in out
    event = store.events("m")[-1]
    assert event.type == "gate_failed" and event.report is not None
    report = store.report("m", event.report)
    assert report["verdict"] == "HOLD" and report["suite"]["n"] == 5 and report["suite"]["frozen"] is True
    assert ask("gate", "m@2", "m@1", *suite, *COMMON, "--regression", "t.suite.jsonl", "--save", "r.json") == 4
    out = capsys.readouterr().out
    assert "froze" not in out and "regression t" in out and "5 independent items, at least 100 are asked for" in out
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "INCONCLUSIVE"
    (tmp_path / "t.suite.jsonl").write_text((tmp_path / "t.suite.jsonl").read_text().replace("=", "= ", 1))
    assert ask("gate", "m@2", "m@1", *suite, *COMMON) == 1 and "changed after it was frozen" in capsys.readouterr().err


def test_items_that_were_trained_on_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.dumps({"prompt": f"{i} + 1 =", "answer": str(i + 1)}) for i in range(9)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "eval.jsonl").write_text("\n".join(rows[:3]) + "\n")
    data = ("--set", "data.eval=eval.jsonl", "--set", "data.overlap=warn")
    assert ask("gate", "tiny", "tiny", "--task", "train.jsonl", *data, *COMMON) == 3
    assert "HOLD: 3 of 3 items are training rows" in capsys.readouterr().out
    assert ask("gate", "tiny", "tiny") == 2
