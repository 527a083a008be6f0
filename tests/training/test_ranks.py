"""Several processes learn what one learns: DDP and FSDP2 over gloo, for GRPO and GFPO, LoRA and full; checkpoints resume at another size."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from policyloop.training.ranks import Ranks

HARNESS = Path(__file__).parent / "ranks_harness.py"
_spec = importlib.util.spec_from_file_location("ranks_harness", HARNESS)
assert _spec is not None and _spec.loader is not None
H = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(H)

# float32 sums in another order (1e-8 on a gradient); AdamW divides a gradient by its own size, so an element near eps = 1e-8 may
# move by up to lr x the relative difference: measured 3e-6 after 4 steps at lr 1e-3
TOLERANCE = 5e-5
KINDS = {
    "grpo": "",
    "gfpo": "rl_strategy.type=gfpo,rl_strategy.filter.top_k.k=3,rl_strategy.updates_per_rollout=2",
    "lora": "model.lora.r=4,model.lora.alpha=8",
}
FSDP2 = "training.dist.strategy=fsdp2"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranked(folder: Path, *runs: str, world: int = 2) -> list[subprocess.Popen[str]]:
    """The environment that torchrun would make, without the time that torchrun itself takes."""
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, str(HARNESS), str(folder), *runs],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]


def finish(*processes: subprocess.Popen[str], code: int = 0) -> str:
    said = [p.communicate(timeout=240)[1] for p in processes]
    assert [p.returncode for p in processes] == [code] * len(processes), said
    return said[0]


def alone(folder: Path, *runs: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    H.main(folder, list(runs))
    torch.set_num_threads(before)


def tensors(folder: Path, name: str, step: int = H.STEPS) -> dict[str, torch.Tensor]:
    root = folder / name / "checkpoints" / f"{step:08d}" / "policy"
    return load_file(next(p for p in root.glob("*model.safetensors")))


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in found]


def assert_same(folder: Path, one: str, other: str) -> None:
    a, b = tensors(folder, one), tensors(folder, other)
    start = max(float(x.abs().max()) for x in a.values())
    assert start > 0.01  # there is something to compare
    torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=0)
    for row, twin in zip(rows(folder, one), rows(folder, other), strict=True):
        assert row == pytest.approx(twin, abs=1e-4, rel=1e-3, nan_ok=True)


def test_shares_are_contiguous_complete_and_even() -> None:
    sizes = [10, 10, 10, 30, 5, 5]
    shares = [list(Ranks(rank, 3).share(sizes)) for rank in range(3)]
    assert [n for share in shares for n in share] == list(range(6))
    assert max(sum(sizes[n] for n in share) for share in shares) <= 40
    assert list(Ranks().share(sizes)) == list(range(6))
    assert [list(Ranks(rank, 2).share([7])) for rank in range(2)] in ([[0], []], [[], [0]])


def test_two_processes_with_ddp_learn_what_one_learns(tmp_path: Path) -> None:
    processes = ranked(tmp_path, "ddp")
    alone(tmp_path, "one")
    finish(*processes)
    assert_same(tmp_path, "one", "ddp")
    assert len(rows(tmp_path, "ddp")) == H.STEPS  # one process wrote


@pytest.mark.slow
def test_ddp_and_fsdp2_for_every_kind(tmp_path: Path) -> None:
    runs = [f"ddp-{k}={v}" for k, v in KINDS.items()]
    runs += [f"fsdp2-{k}={','.join(filter(None, (v, FSDP2)))}" for k, v in KINDS.items()]
    finish(*ranked(tmp_path, *runs))
    alone(tmp_path, *(f"one-{k}={v}" for k, v in KINDS.items()))
    for kind in KINDS:
        for strategy in ("ddp", "fsdp2"):
            assert_same(tmp_path, f"one-{kind}", f"{strategy}-{kind}")
    for rank in (0, 1):
        sharded, whole = (json.loads((tmp_path / f"{s}-grpo.{rank}.json").read_text()) for s in ("fsdp2", "ddp"))
        assert sharded["dtensor"] and sharded["held"] <= 0.51 * whole["held"]
        assert not whole["dtensor"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_checkpoint_resumes_at_another_size(tmp_path: Path, strategy: str) -> None:
    chosen, first = f"training.dist.strategy={strategy}", "training.steps=2"
    alone(tmp_path, "one", f"up={first}")
    finish(*ranked(tmp_path, f"down={chosen},{first}", f"up={chosen}"))
    alone(tmp_path, "down")
    for name in ("up", "down"):
        assert_same(tmp_path, "one", name)
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        assert [e["step"] for e in events if e["kind"] == "resume"] == [2]


def until(condition: Any, process: subprocess.Popen[str], limit_s: float = 120) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.stderr and process.poll()
        time.sleep(0.05)


def launched(folder: Path, *flags: str) -> subprocess.Popen[str]:
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"""
model: {{base_model_path: tiny, lora: null, template: plain}}
data: {{task: tiny_arithmetic}}
rewards: {{terms: [{{"{HARNESS}:digits": {{}}}}]}}
rl_strategy: {{type: grpo, group_size: 4}}
training:
  steps: 100000
  prompts_per_step: 4
  threads: 1
  signal_check: null
  dist: {{master_port: {free_port()}, timeout_s: 20}}
rollout: {{max_new_tokens: 8}}
evaluation: {{every: 0}}
"""
    )
    command = [sys.executable, "-m", "policyloop", "train", str(recipe), "--launcher", "torchrun", "--ranks", "2"]
    return subprocess.Popen(
        [*command, "--run", str(folder / "run"), *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def ranks_of(process: subprocess.Popen[str]) -> list[Any]:
    import psutil

    return psutil.Process(process.pid).children()[0].children()


@pytest.mark.slow
def test_a_signal_to_one_rank_saves_and_leaves_with_75(tmp_path: Path) -> None:
    process = launched(tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, process)
    ranks_of(process)[1].send_signal(signal.SIGTERM)
    err = finish(process, code=75)
    assert "SIGTERM received: a checkpoint is saved" in err
    (checkpoint,) = [p for p in (tmp_path / "run" / "checkpoints").iterdir() if p.name.isdigit()]
    assert int(checkpoint.name) == len(rows(tmp_path, "run"))


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_says_so(tmp_path: Path) -> None:
    process = launched(tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    until(lambda: metrics.exists() and metrics.read_text().count("\n") >= 1, process)
    ranks = ranks_of(process)
    ranks[1].kill()
    err = finish(process, code=1)
    assert "another rank ended" in err or "Signal 9 (SIGKILL)" in err
    assert not any(r.is_running() and r.status() != "zombie" for r in ranks)
