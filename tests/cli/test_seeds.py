"""`train --seeds`: a run per seed, their mean with Student's interval; what is no list of numbers is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyloop.cli import _command, _run
from policyloop.stats import mean_interval

CONFIG = """
model: {base_model_path: tiny, lora: null, template: plain}
data: {task: tiny_arithmetic}
rl_strategy: {type: sft}
training: {steps: 2, batch_size: 4, lr: 1e-3, threads: 1, precision: fp32}
rollout: {max_new_tokens: 8, samples: 0}
evaluation: {every: 2, prompts: 8, temperature: 1.0}
"""


def train(*arguments: str) -> int:
    return _run(_command("train", "train:train", ""), list(arguments))


def test_students_interval_over_seeds() -> None:
    """Mean 2, s = 1, n = 3: half width 4.303 / sqrt(3)."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.value, found.high - found.value) == (2.0, pytest.approx(4.302653 / 3**0.5, abs=1e-5))
    assert mean_interval([5.0]).high == float("inf")


def test_a_run_per_seed_and_their_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert train(str(tmp_path / "c.yaml"), "--run", str(tmp_path / "r"), "--seeds", "3,5") == 0
    assert json.loads((tmp_path / "r-seed5" / "manifest.json").read_text())["seed"] == 5
    found = json.loads((tmp_path / "r-seeds.json").read_text())
    assert set(found["length_mean"]["seeds"]) == {"3", "5"}
    assert "held-out length over 2 seeds: " in capsys.readouterr().out


@pytest.mark.parametrize("seeds", ["", "0,x", "1,1", "-1"])
def test_what_is_no_list_of_seeds_is_refused(seeds: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert train(str(tmp_path / "c.yaml"), f"--seeds={seeds}") == 2
