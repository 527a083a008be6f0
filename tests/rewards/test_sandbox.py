"""What somebody else's code cannot do to this machine. Every case runs in a real process."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from policyloop.rewards.sandbox import Limits, Outcome, available, run

pytestmark = pytest.mark.skipif(available() is not None, reason=f"no sandbox here: {available()}")
SHORT = Limits(timeout_s=5.0, memory_mb=256)


def test_pieces_share_a_namespace_and_pass_when_all_of_them_end() -> None:
    assert run(["def add(a, b):\n    return a + b", "assert add(2, 3) == 5"], SHORT) == Outcome(True, "")
    assert run(["def add(a, b):\n    return a - b", "assert add(2, 3) == 5"], SHORT) == Outcome(False, "AssertionError")


@pytest.mark.parametrize("early", ["import os; os._exit(0)", "raise SystemExit(0)", "print('passed')\nimport os\nos._exit(0)"])
def test_an_early_exit_is_no_pass(early: str) -> None:
    assert not run([early, "assert False"], SHORT).passed


def test_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = run([f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)"], SHORT)
    assert not found.passed and "PermissionError" in found.why


def test_no_writing_outside_its_folder(tmp_path: Path) -> None:
    there = tmp_path / "kept"
    there.write_text("mine")
    for attempt in (
        f"open({str(there)!r}, 'w')",
        f"import os; os.remove({str(there)!r})",
        f"open({str(tmp_path / 'new')!r}, 'w')",
    ):
        found = run([attempt], SHORT)
        assert not found.passed and "PermissionError" in found.why, attempt
    assert there.read_text() == "mine" and not (tmp_path / "new").exists()
    assert run(["open('a.txt', 'w').write('x')", "assert open('a.txt').read() == 'x'"], SHORT).passed


def test_no_other_processes_and_no_signals_but_threads() -> None:
    for attempt in ("os.fork()", "os.system('true') and 1/0", "os.execv('/bin/true', ['true'])", f"os.kill({os.getpid()}, 0)"):
        assert not run([f"import os\n{attempt}"], SHORT).passed, attempt
    assert run(["import threading\nt = threading.Thread(target=print)\nt.start(); t.join()"], SHORT).passed


def test_time_and_memory_end() -> None:
    start = time.monotonic()
    found = run(["while True: pass"], Limits(timeout_s=0.5))
    assert not found.passed and "longer than 0.5 s" in found.why
    found = run(["import time\ntime.sleep(60)"], Limits(timeout_s=0.5))
    assert not found.passed and time.monotonic() - start < 30
    assert "MemoryError" in run(["x = bytearray(1 << 30)"], SHORT).why


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    assert run(["import os\nassert 'API_KEY' not in os.environ"], SHORT).passed
