"""A run may be killed at any moment: what resumes is bit for bit what would have been."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

_spec = importlib.util.spec_from_file_location("harness", Path(__file__).parent / "harness.py")
assert _spec is not None and _spec.loader is not None
H = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(H)

BOUNDARIES = ("write", "fsync", "replace", "rename")


class Dead(BaseException):
    """The process is gone: nothing that touches the disk works any more, not even in a `finally`."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    H.run(folder)
    return H.outcome(folder)


def dying(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """Every write, fsync, replace and rename counts; number `at` does not happen, nor does any after it. Returns the counter."""
    count = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count > at:
                raise Dead
            return real(*args, **kwargs)

        return call

    for name in BOUNDARIES:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return lambda: count


def killed_then_resumed(folder: Path, at: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        dying(patch, at)
        with contextlib.suppress(Dead):
            H.run(folder)
    H.run(folder)
    return H.outcome(folder)


def count_boundaries(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        counted = dying(patch, 10**9)
        H.run(folder)
        return counted()


def test_two_equal_runs_are_equal_bit_for_bit(tmp_path: Path, undisturbed: Any) -> None:
    H.run(tmp_path / "run")
    assert H.outcome(tmp_path / "run") == undisturbed


def test_a_kill_at_some_boundaries(tmp_path: Path, undisturbed: Any) -> None:
    """A spread of them; every single one is in test_a_kill_at_every_boundary."""
    total = count_boundaries(tmp_path / "count" / "run")
    assert total > 40
    for at in [2, *sorted(random.Random(0).sample(range(3, total), 6)), total - 1]:
        assert killed_then_resumed(tmp_path / str(at) / "run", at) == undisturbed, f"boundary {at} of {total}"


def test_the_look_before_the_first_step_leaves_no_trace(tmp_path: Path, undisturbed: Any) -> None:
    """Else a kill during it would count twice what running statistics saw."""
    H.run(tmp_path / "run", **{"training.signal_check": "null"})
    assert H.outcome(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_a_kill_at_every_boundary(tmp_path: Path, undisturbed: Any) -> None:
    for at in range(count_boundaries(tmp_path / "count" / "run")):
        assert killed_then_resumed(tmp_path / str(at) / "run", at) == undisturbed, f"boundary {at}"


def start_process(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "harness.py"), str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def disturb(folder: Path, signals: list[tuple[float, int]]) -> list[int]:
    """Each signal after that many seconds past the first metrics line (or the start); then once without. Returns exit codes."""
    codes = []
    for delay, number in signals:
        process = start_process(folder)
        deadline = time.monotonic() + 120
        while not (folder / "manifest.json").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(delay)
        process.send_signal(number)
        process.communicate(timeout=120)
        codes.append(process.returncode)
    process = start_process(folder)
    process.communicate(timeout=240)
    return [*codes, process.returncode]


def test_sigterm_saves_and_leaves_with_75(tmp_path: Path, undisturbed: Any) -> None:
    codes = disturb(tmp_path / "run", [(0.8, signal.SIGTERM)])
    assert codes[0] in (75, 0, -signal.SIGTERM) and codes[-1] == 0
    assert H.outcome(tmp_path / "run") == undisturbed


@pytest.mark.slow
def test_twenty_random_signals(tmp_path: Path, undisturbed: Any) -> None:
    rng = random.Random(7)
    for k in range(10):
        pair = [(rng.uniform(0, 3), rng.choice([signal.SIGKILL, signal.SIGTERM])) for _ in range(2)]
        assert disturb(tmp_path / str(k) / "run", pair)[-1] == 0
        assert H.outcome(tmp_path / str(k) / "run") == undisturbed, pair


def test_out_of_memory_in_backward_changes_nothing(tmp_path: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One micro-batch fails half-way through a step's backward; the whole step is replayed at half the budget."""
    from policyloop.training.trainer import Trainer

    real, calls = Trainer._forward, 0

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"
            )
        return real(self, *args, **kwargs)

    H.run(tmp_path / "plain", **{"training.micro_batch_tokens": 24})
    monkeypatch.setattr(Trainer, "_forward", forward)
    H.run(tmp_path / "run", **{"training.micro_batch_tokens": 24})
    plain, disturbed = H.outcome(tmp_path / "plain")[1], H.outcome(tmp_path / "run")[1]
    assert calls > 7
    assert disturbed[0]["grad_norm"] == pytest.approx(plain[0]["grad_norm"], rel=1e-5)
    assert [r["reward/mean"] for r in disturbed] == pytest.approx([r["reward/mean"] for r in plain], rel=1e-4)


def test_resume_refuses_another_config_and_takes_what_may_change(tmp_path: Path) -> None:
    from policyloop.errors import BadInput

    H.run(tmp_path / "run", **{"training.steps": 2})
    with pytest.raises(BadInput, match=r"cannot change in model\.lora.*on resume"):
        H.run(tmp_path / "run", **{"model.lora": "{r: 4}"})
    said: list[str] = []
    from policyloop.run import start

    start(H.recipe(**{"training.steps": 3, "training.lr": 5e-4}), tmp_path / "run", resume="auto", say=said.append)
    assert any("training.lr: 0.001 -> 0.0005" in line for line in said)
    assert (tmp_path / "run" / "checkpoints" / "00000003").exists()


def test_non_finite_updates_are_skipped_dumped_and_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3-59, S3-74: nothing of a bad step reaches the weights; five in a row restore the last good checkpoint and stop."""
    from policyloop.errors import Problem
    from policyloop.models.policy import PolicyModel

    real, after = PolicyModel.forward, 9

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal after
        out = real(self, *args, **kwargs)
        after -= torch.is_grad_enabled()
        if after < 0 and torch.is_grad_enabled():
            out.logprobs_NT = out.logprobs_NT * float("nan")
        return out

    monkeypatch.setattr(PolicyModel, "forward", forward)
    with pytest.raises(Problem, match=r"updates in a row were not finite; the checkpoint of step \d+ was restored"):
        H.run(tmp_path / "run", **{"training.steps": 20})
    assert list((tmp_path / "run" / "bad").glob("*.json"))
    rows = H.outcome_rows(tmp_path / "run")
    assert sum(row["update/nan"] for row in rows) >= 5


def test_without_signal_the_run_stops_before_the_first_update(tmp_path: Path) -> None:
    from policyloop.errors import BadInput

    with pytest.raises(BadInput, match=r"0% of 4 groups have any signal"):
        H.run(tmp_path / "run", rewards="[{correct: {}}]", **{"rl_strategy.group_size": 4})
