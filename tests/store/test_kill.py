"""kill -9 at every step of every move: the store stays readable, the last event points at whole versions, the chain holds, the next move works."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policyloop.errors import Problem
from policyloop.store import Keep, Store, moves, open_store, retention
from policyloop.store.verify import verify

CALLS = ("write", "fsync", "link", "unlink", "replace", "mkdir", "open")


def publish(store: Store, seed: int) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"%d" % seed * 100}
    store.publish("answers", files, lineage={"seed": seed}, by="child")


def promote(store: Store, seed: int) -> None:
    numbers = store.numbers("answers")
    moves.promote(store, store.version("answers", numbers[seed % len(numbers)]), by="child", reason="kill", force=True)


def rollback(store: Store, seed: int) -> None:
    moves.rollback(store, "answers", by="child", reason="kill")


def nominate(store: Store, seed: int) -> None:
    moves.nominate(store, store.version("answers", store.numbers("answers")[-1]), by="child", reason="kill")


def gc(store: Store, seed: int) -> None:
    retention.gc(store, "answers", Keep(last=1, best=0, days=0, grace_s=0), by="child")


ACTIONS: list[Callable[[Store, int], None]] = [publish, promote, rollback, nominate, gc]


def in_a_child_killed_at(step: int, torn: bool, action: Callable[[], None]) -> bool:
    """Run `action` in a fork that gets SIGKILL before its `step`-th system call on files (a write may be torn). True: it lived to the end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = step

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                if name == "write" and torn:
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(name))
    try:
        action()
    except Problem:  # nothing to promote yet, and the like
        pass
    finally:
        os._exit(0)


def check(uri: str, before: int) -> int:
    """Everything that must hold after any death. Returns the number of the last event."""
    store = open_store(uri)
    found = verify(store)
    assert found.wrong == []
    state = store.state("answers")
    assert state.n >= before, "an event that was there is gone"
    assert not state.after.pointed & set(state.after.expiring)
    return state.n


def campaign(plan: list[tuple[int, int, bool, int]]) -> None:
    place = Path(tempfile.mkdtemp(prefix="policyloop-kill-"))
    try:
        uri = str(place / "store")
        publish(open_store(uri), -1)
        last = 1
        for action, step, torn, seed in plan:
            in_a_child_killed_at(step, torn, lambda a=ACTIONS[action], s=seed: a(open_store(uri), s))
            last = check(uri, last)
        publish(open_store(uri), 10_000)  # nothing that died stands in the way of the next
        assert check(uri, last) > last
    finally:
        shutil.rmtree(place)


PLANS = st.lists(
    st.tuples(st.integers(0, len(ACTIONS) - 1), st.integers(0, 70), st.booleans(), st.integers(0, 9)), min_size=1, max_size=8
)
CALM = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=10, **CALM)
@given(PLANS)
def test_killed_anywhere(plan: list[tuple[int, int, bool, int]]) -> None:
    campaign(plan)


@pytest.mark.slow
@settings(max_examples=300, **CALM)
@given(PLANS)
def test_killed_anywhere_long(plan: list[tuple[int, int, bool, int]]) -> None:
    campaign(plan)


@pytest.mark.parametrize(
    "action", [promote, *(pytest.param(a, marks=pytest.mark.slow) for a in (publish, gc))], ids=lambda a: a.__name__
)
def test_every_single_step_of_a_move(action: Callable[[Store, int], None], tmp_path: Path) -> None:
    """Not drawn but walked: death before each call in turn, until the move lives to its end."""
    store = open_store(str(tmp_path / "store"))
    for seed in range(3):
        publish(store, seed)
    moves.promote(store, store.version("answers", 1), by="test", reason="first", force=True)
    shutil.copytree(tmp_path / "store", tmp_path / "begin")
    for deaths in range(200):
        shutil.rmtree(tmp_path / "store")
        shutil.copytree(tmp_path / "begin", tmp_path / "store")
        lived = in_a_child_killed_at(deaths, True, lambda: action(open_store(store.uri), 7))
        check(store.uri, 4)
        if lived:
            assert deaths > 5
            return
    raise AssertionError("it never lived to its end")
