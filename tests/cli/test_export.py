"""`policyloop export` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from policyloop.cli import main
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


FAST = ("--set", "export.parity.prompts=3", "--set", "export.parity.max_new_tokens=6")


def test_export_with_a_task_registers_and_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = ask("export", "tiny", "--to", "out", "--task", "tiny_arithmetic", "--register", "mine", "--store", "store", *FAST)
    out = capsys.readouterr().out
    assert code == 0 and "parity holds" in out and "registered mine@1" in out
    version = open_store("store").resolve("mine@1")
    assert version.serving["parser"]["task"] == "tiny_arithmetic" and version.failed_checks() == []
    assert version.id == json.loads((tmp_path / "out" / "manifest.json").read_text())["id"]
    assert ask("export", "tiny", "--to", "out", *FAST) == 1 and ask("export", "tiny") == 2


def test_a_failed_parity_exits_3_and_forbids_promotion(capsys: pytest.CaptureFixture[str]) -> None:
    code = ask("export", "tiny", "--format", "int4", "--register", "mine", "--set", "export.parity.max_kl=0", *FAST)
    assert code == 3 and "NOT PROMOTABLE: KL" in capsys.readouterr().out
    assert open_store(None).resolve("mine@1").failed_checks() == ["parity"]
