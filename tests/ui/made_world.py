"""What a console looks at: two run folders, a store in which version 2 is on trial, a journal with feedback, a key file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from policyloop.api.keys import KeyFile
from policyloop.gateway import ReleaseSettings
from policyloop.gateway.release import begin
from policyloop.journal import Feedback, Record
from policyloop.journal.segments import encode
from policyloop.journal.shipping import Shelf
from policyloop.store import After, Store, moves, open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))
from made_run import CONFIG, make_run

SHIP = {"verdict": "SHIP", "reasons": ["0.71 against 0.64, difference +0.07 [+0.02, +0.12]"]}
SIGNAL = {"signal": "errors", "outcome": "inconclusive", "needed": True, "worse": 2.0, "worse_bound": 40.0, "not_worse": 6.0, "not_worse_bound": 20.0}  # fmt: skip


def make_world(folder: Path) -> tuple[Path, str, Path, str]:
    """Folder of runs, store, key file, and a key that may promote."""
    make_run(folder / "runs" / "first")
    make_run(
        folder / "runs" / "second", steps=40, offset=0.05, config={**CONFIG, "rl_strategy": {"type": "grpo", "group_size": 4}}
    )
    uri = str(folder / "store")
    store = open_store(uri)
    make_versions(store)
    make_journal(folder, uri)
    keys = folder / "keys.json"
    return folder / "runs", uri, keys, KeyFile(keys).add("ann", ["promote"])


def make_versions(store: Store, name: str = "math") -> None:
    """@1 stable, @2 stable after it, @3 passed the gate and gets a tenth of the traffic."""
    for n in (1, 2, 3):
        store.publish(
            name,
            {"model.safetensors": bytes([n]) * 2000, "config.json": b"{}"},
            by="train",
            lineage={"run": f"run-{n}", "step": 20 * n, "parent": f"{name}@{n - 1}" if n > 1 else None},
            evaluation={
                "word_problems": {"metric": "accuracy", "value": 0.5 + n / 10, "n": 200, "interval": [0.4 + n / 10, 0.6 + n / 10]}
            },
        )
    moves.promote(store, store.version(name, 1), by="ann", reason="first", force=True)
    moves.promote(store, store.version(name, 2), by="ann", reason="better", report=SHIP)
    store.append(name, "gate_passed", "gate", "SHIP", version=3, report=SHIP)
    moves.nominate(store, store.version(name, 3), by="improve", reason="round 3")
    staged = begin(store.state(name).after, 3, ReleaseSettings(), now=1.8e9, by="improve", id="r3").after
    for share in (0.01, 0.1):
        release: dict[str, Any] = {**staged.release, "state": "canary", "shares": {"2": 1 - share, "3": share}}
        after: After = replace(staged, release=release)
        report = {"outcome": "inconclusive", "signals": [{**SIGNAL, "worse": 2.0 + 30 * share}, {**SIGNAL, "signal": "feedback", "outcome": "pass", "not_worse": 22.0}]}  # fmt: skip
        store.append(name, "canary_step", "gateway", f"{share:.0%}", lambda _, after=after: after, version=3, report=report)


def make_journal(folder: Path, uri: str) -> None:
    asked: dict[str, Any] = {
        "model": "math",
        "prompt": [{"role": "user", "content": "3 + 4?"}],
        "finish_reason": "stop",
        "key": "team",
    }
    rows = [("records", Record.of({**asked, "request_id": f"r{n}", "at": 1.7e9 + n, "version": f"math@{1 + n % 2}", "text": "7", "tokens": 2}).row()) for n in range(6)]  # fmt: skip
    rows += [
        ("feedback", Feedback(request_id=f"r{n}", at=1.7e9 + 60 + n, key="team", kind="thumb", value=v).row())
        for n, v in enumerate((1.0, -1.0, 1.0))
    ]
    rows.append(("feedback", Feedback(request_id="r1", at=1.7e9 + 90, key="team", kind="answer", value="7").row()))
    segment = folder / "segment"
    segment.write_bytes(b"".join(encode(kind, row) for kind, row in rows))
    Shelf.at(uri).ship(segment, "segment")
