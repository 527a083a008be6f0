"""The second half of `policyloop demo`: a trained run is gated, stored, served by a server of its own, asked over HTTP and told what was right.

In: a finished run, and what it and its start measured on the same problems. Out: a version in the store, a journal with one answer and what was
said of it, and in the terminal the circle as it went, with the commands that go on.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PATIENCE_S = 300.0  # for a server to load its model on a busy machine, and to leave


@dataclass
class Clock:
    """Stages with a title before and the time they took after them."""

    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def stage(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        print(f"\n== {title} ==", flush=True)
        yield
        print(f"-- {minutes(time.monotonic() - began)}, {minutes(self.elapsed_s)} since the start", flush=True)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def around(clock: Clock, folder: Path, recipe: Any, run: Path, before: Any, after: Any, *, name: str, seed: int) -> None:
    """`before`, `after`: evaluations of the start and of the run's last step on the same problems. `seed`: of held-out texts to ask."""
    store, journal = folder / "demo-store", folder / "demo-journal"
    with clock.stage(f"{run.name}: into the store, through the gate"):
        version, report = stored(store, name, run, recipe, before, after)
    with clock.stage(f"{version} served, asked, told"):
        request = served(version, store, journal, recipe, seed)
        _followed(request, store)
    _summary(clock, folder, recipe, run, version, report, request)


def stored(place: Path, name: str, run: Path, recipe: Any, before: Any, after: Any) -> tuple[Any, Any]:
    """The run's last step as a version with the gate's report beside it; stable if that says SHIP."""
    from policyloop.cli.models import audit, list_models
    from policyloop.evaluation.gate import EVENTS, gate
    from policyloop.store import actor, open_store
    from policyloop.store.moves import nominate, promote
    from policyloop.training.register import register

    store = open_store(str(place))
    version = register(store, run, name=name, which="last")
    nominate(store, version, by=actor(), reason=f"the better of two runs, {run.name}")
    report = gate(
        before, replace(after, version=str(version)), recipe.evaluation.gate, suite={"frozen": False, "n": len(after.items)}
    )
    print("\n".join(report.lines()))
    store.append(name, EVENTS[report.verdict], actor(), report.reason, version=version.number, report=report.tree())
    if report.verdict == "SHIP":
        promote(store, version, by=actor(), reason="the gate says SHIP")
    print(f"$ policyloop models list {name} --store {place}")
    list_models(name, store=str(place))
    print(f"$ policyloop models audit {name} --store {place}")
    audit(name, store=str(place))
    return version, report


def served(version: Any, store: Path, journal: Path, recipe: Any, seed: int) -> str:
    """One held-out question to a server of its own, and what was right back to it. Gives the request's id."""
    import httpx

    from policyloop.tasks import load_task

    prompt = load_task(recipe.data, recipe.training.seed).held_out(seed)[0]
    question = prompt.text or "\n".join(m.content for m in prompt.messages or () if m.role == "user")
    with server(version, store, journal) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        print(f"POST {url}/predict {{'question': {question!r}}}", flush=True)
        reply = client.post("/predict", json={"question": question}).raise_for_status().json()
        print(f"{reply['version']} answers {reply['answer']!r} (right: {prompt.target}), request {reply['request_id']}")
        said = {"request_id": reply["request_id"], "kind": "answer", "value": prompt.target, "user": "demo"}
        client.post("/v1/feedback", json=said).raise_for_status()
        print(f"POST {url}/v1/feedback {said}", flush=True)
    return reply["request_id"]


@contextmanager
def server(version: Any, store: Path, journal: Path) -> Iterator[str]:
    """`policyloop serve` in a process of its own on any free port, until the `with` is left: SIGTERM, which drains. Errors: Problem."""
    from policyloop.errors import Problem

    command = ["serve", str(version), "--port", "0", "--admin-port", "0", "--journal", str(journal)]
    print(f"$ POLICYLOOP_STORE={store} policyloop {' '.join(command)}", flush=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "policyloop", *command],
        env={**os.environ, "POLICYLOOP_STORE": str(store.absolute())},
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    watch = threading.Timer(PATIENCE_S, process.kill)
    watch.start()
    assert process.stderr is not None
    try:
        lines = list[str]()
        while not lines or not lines[-1].startswith("ready: "):
            lines.append(process.stderr.readline())
            if not lines[-1]:
                raise Problem(f"the server did not start: {''.join(lines[-4:]).strip()}")
        watch.cancel()
        yield re.findall(r"listens on (http://\S+)", "".join(lines))[0]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        print(f"SIGTERM: the server drained, shipped its journal and left with exit code {process.returncode}", flush=True)
    finally:
        watch.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def _followed(request: str, store: Path) -> None:
    """The request as the store knows it now (the join needs DuckDB, the extra `curate`)."""
    from importlib.util import find_spec

    from policyloop.cli.collect import request_lines

    if find_spec("duckdb") is None:
        print("pip install duckdb to follow the request: policyloop trace")
        return
    print(f"$ policyloop trace {request} --store {store}")
    print("\n".join(request_lines(request, str(store))), flush=True)


def _summary(clock: Clock, folder: Path, recipe: Any, run: Path, version: Any, report: Any, request: str) -> None:
    """The circle that was run, and what one types next."""
    store, task = folder / "demo-store", recipe.data.task
    standing = "stable" if report.verdict == "SHIP" else "candidate, not promoted"
    print(f"\n== the circle, {minutes(clock.elapsed_s)} minutes ==")
    for what, how in (
        ("trained", f"{run.name}, {recipe.training.steps} steps, the better of two by its own held-out figure"),
        ("proven", f"{report.verdict}: {report.reason}"),
        ("stored", f"{version} ({standing}) in {store}"),
        ("served", "one question over HTTP, answered by the stored version"),
        ("fed back", f"the right answer to {request}, in the journal"),
    ):
        print(f"{what:9} {how}")
    print(f"\nopen {folder / 'demo-report.html'} in a browser; what to type next:")
    print(f"export POLICYLOOP_STORE={store}")
    model, column = f"{version.name}@{'stable' if report.verdict == 'SHIP' else 'candidate'}", 62
    for command, why in (
        (f"policyloop chat {model}", "ask it yourself"),
        (f"policyloop serve {model} --journal {folder / 'demo-journal'}", "keep it running"),
        (f"policyloop export {model} --to {folder / 'demo-bundle'}", "a folder that stands alone"),
        (f"policyloop trace {version}", "where it comes from"),
        (
            f"policyloop collect curate --held-out {task}",
            "feedback to a training set; the question above is held out and stays out",
        ),
        ("policyloop improve CONFIG", "the whole circle again, by itself (docs/improve.md)"),
        (f"policyloop ui {folder}", "all of this in a browser, http://127.0.0.1:8090"),
    ):
        print(f"{command:{column}}  {why}")
