"""The preflight on this machine: every line says what was found, every bad one its fix; a taken port and a read-only cache are seen."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from policyloop.cli import _command, _run
from policyloop.doctor import Check, failed
from policyloop.doctor import environment as env


def doctor(*arguments: str) -> int:
    return _run(_command("doctor", "doctor:doctor", ""), list(arguments))


def test_this_machine_passes_and_every_line_that_is_not_ok_has_a_fix() -> None:
    checks = env.environment()
    assert {"python", "libraries", "torch", "cores", "memory", "disk", "cache"} <= {c.name for c in checks}
    assert all(c.fix for c in checks if c.verdict in ("warn", "fail"))


def test_versions_below_their_bound_and_missing_libraries_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {
        "numpy": ("999.0", True),
        "no-such-library-at-all": ("1.0", True),
        "no-such-extra": ("1.0", False),
        "pyyaml": ("6", True),
    }
    monkeypatch.setattr(env, "bounds", lambda: bounds)
    found = {c.name: c for c in env._libraries()}
    assert found["numpy"].verdict == found["no-such-library-at-all"].verdict == "fail"
    assert found["no-such-library-at-all"].fix == "pip install 'no-such-library-at-all>=1.0'"
    assert "no-such-extra" not in found and found["libraries"].found.startswith("1 of 4")


def test_bounds_are_those_of_the_project() -> None:
    assert env.bounds()["torch"][1] and not env.bounds()["fastapi"][1]


def test_a_taken_port_is_named_with_what_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(env, "PORTS", {port: "serve"})
        assert [c.name for c in env._ports() if c.verdict == "warn"] == [f"port {port}"]
    monkeypatch.setattr(env, "PORTS", {port: "serve"})
    assert [c.verdict for c in env._ports()] == ["ok"]


def test_a_cache_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "file"))
    assert env._cache().verdict == "fail"


def test_the_hub_is_not_asked_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert env._hub().verdict == "ok"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert env._hub().verdict == "warn" and "mirror" in env._hub().fix


def test_the_verb_prints_lines_or_json_and_its_exit_code_says_whether_something_failed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert doctor("env", "--json") == int(failed(env.environment()))
    assert {"name", "verdict", "found", "fix"} == set(json.loads(capsys.readouterr().out)[0])
    (tmp_path / "bad.yaml").write_text("model: {base_model_path: tiny}\ntraining: {learning_rat: 1}\n")
    assert doctor("env", "--recipe", str(tmp_path / "bad.yaml")) == 1
    assert "fail  recipe: unknown key" in capsys.readouterr().out
    (tmp_path / "good.yaml").write_text(
        "model: {base_model_path: tiny, lora: null, template: plain}\ndata: {task: tiny_arithmetic}\n"
    )
    assert doctor("env", "--recipe", str(tmp_path / "good.yaml")) == 0
    assert doctor(str(tmp_path)) == 2


def test_a_line_says_verdict_what_was_found_and_the_fix() -> None:
    assert Check("disk", "fail", "0.1 GB free", "free some space").line() == "fail  disk: 0.1 GB free; fix: free some space"


def test_a_folder_without_a_run_is_named_as_it_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("runs/nothing") == 2
    assert "policyloop: runs/nothing holds no run" in capsys.readouterr().err
