"""Real processes: two `policyloop serve`, a `policyloop gateway` in front, killed with -9 in mid canary, and the verb that goes back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from policyloop.api.running import bound

pytestmark = pytest.mark.slow
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def free() -> int:
    with bound("127.0.0.1", 0) as sock:
        return sock.getsockname()[1]


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-m", "policyloop", *words], env=ENV)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def until(fine: Callable[[], Any], seconds: float = 300.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
            if found := fine():
                return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


def test_real_servers_a_killed_gateway_and_the_way_back(tmp_path: Path) -> None:
    servers, port, admin = [free(), free()], free(), free()
    backends = [{"url": f"http://127.0.0.1:{p}", "version": v} for v, p in enumerate(servers, 1)]
    signals = {"errors": {"margin": 0.3}, "slow": None, "long": None, "feedback": None, "verifier": None}
    release = {"steps": [0.5], "step_min_s": 3600, "unit_outcomes": 1, "signals": signals}
    model = {"name": "m", "backends": backends, "release": release}
    config, store = tmp_path / "gateway.yaml", str(tmp_path / "store")
    config.write_text(json.dumps({"gateway": {"port": port, "admin_port": admin, "store": store, "models": [model]}}))
    at = f"http://127.0.0.1:{admin}/admin/models/m"

    def ask(session: str) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": "2+2="}], "max_tokens": 4}
        headers = {"x-policyloop-session": session}
        reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text
        return next(k for k, v in httpx.get(at).json()["answered"].items() if v > seen.get(k, 0) and not seen.update({k: v}))

    def state() -> str:
        return httpx.get(at).json()["state"]

    seen: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        for p in servers:
            words = ("serve", "tiny", "--name", "m", "--port", str(p), "--admin-port", str(free()), "--template", "plain")
            stack.enter_context(process(*words))
        first = stack.enter_context(process("gateway", str(config)))
        until(lambda: all(b["up"] for b in httpx.get(at).json()["backends"]))
        assert httpx.post(f"{at}/release", json={"version": 2}).status_code == 200
        until(lambda: state() == "canary")
        before = {f"s{i}": ask(f"s{i}") for i in range(12)}
        assert set(before.values()) == {"m@1", "m@2"}
        log = httpx.get(f"{at}/events").json()["events"]
        first.send_signal(signal.SIGKILL)
        first.wait()
        second = stack.enter_context(process("gateway", str(config)))
        until(lambda: state() == "canary")
        until(lambda: all(b["up"] for b in httpx.get(at).json()["backends"]))
        assert httpx.get(f"{at}/events").json()["events"] == log
        seen.clear()
        assert {s: ask(s) for s in before} == before
        words = ["models", "rollback", "m", "--reason", "no", "--store", store]
        subprocess.run([sys.executable, "-m", "policyloop", *words], env=ENV, check=True)
        until(lambda: state() == "idle", 5.0)
        assert {ask(s) for s in before} == {"m@1"} and httpx.get(at).json()["quarantined"] == [2]
        second.send_signal(signal.SIGTERM)
        assert second.wait(20) == 0
