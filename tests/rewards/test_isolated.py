"""Functions in a process of their own: killed when late, replaced when dead, never left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from scoring import group, scorer, values

from policyloop.rewards import Function, RewardsSettings
from policyloop.rewards.isolated import Isolated

MINE = """
import asyncio, os, time

def score(completions, answer):
    print("whatever a function prints is no answer")
    for text in completions:
        if text == "hang":
            while True: pass
        if text == "die":
            os._exit(7)
        if text == "raise":
            raise KeyError("judge")
    return [float(os.getpid()) if text == "pid" else float(text == gold) for text, gold in zip(completions, answer)]

async def later(completion):
    await asyncio.sleep(0.01)
    return None if completion == "no" else len(completion)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_late_dead_and_failing_calls(path: str) -> None:
    groups = [group(["5", "6"])]
    s = scorer(RewardsSettings(terms=(Function(path=f"{path}:score", timeout_s=1.0, isolated=True),)), groups)

    def tried(*texts: str) -> tuple[list[float | None], float, float]:
        scored, counters = s.score([group(texts)])
        return values(scored), counters["reward/late/score"], counters["reward/failed/score"]

    (first, five), *_ = tried("pid", "5")
    assert five == 1.0 and first not in (None, float(os.getpid()))
    assert tried("pid", "raise") == ([None, None], 0, 2)
    assert tried("pid")[0] == [first]  # an exception does not cost the process
    assert tried("pid", "hang") == ([None, None], 2, 0)
    assert gone(int(first or 0))
    (second,), *_ = tried("pid")
    assert second not in (None, first)
    assert tried("die", "5") == ([None, None], 0, 2)
    assert tried("5", "6") == ([1.0, 0.0], 0, 0)
    assert s.problems() == ["reward score raised RuntimeError: KeyError: 'judge'"]


def test_async_row_by_row_and_the_process_ends_with_its_owner(path: str) -> None:
    groups = [group(["abc", "no"])]
    s = scorer(RewardsSettings(terms=(Function(path=f"{path}:later", isolated=True),)), groups)
    assert values(s.score(groups)[0]) == [3.0, None]

    alone = Isolated(f"{path}:score", timeout_s=5.0)
    pid = int(alone(completions=["pid"], answer=["5"])[0])
    del alone
    assert gone(pid)
