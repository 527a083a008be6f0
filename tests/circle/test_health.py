"""Health in real runs of the tiny model: a guard changes the next update, and a run whose held-out results fall ends at its best checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policyloop.errors import Problem
from policyloop.models.catalogue import resolve
from policyloop.recipe import load
from policyloop.run import Run, start
from policyloop.training.folder import RunFolder


def longer(completions: list[str]) -> list[float]:
    """Pays for length and nothing else."""
    return [float(len(text)) for text in completions]


def train(folder: Path, **changes: Any) -> Run:
    tree = {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
        "data": {"task": "tiny_arithmetic"},
        "rewards": {"terms": [{f"{Path(__file__)}:longer": {}}]},
        "rl_strategy": {"type": "grpo", "group_size": 4, "kl": None, "updates_per_rollout": 2},
        "training": {
            "steps": 4, "prompts_per_step": 4, "lr": 3e-3, "threads": 1, "precision": "fp32", "signal_check": None
        },
        "rollout": {"max_new_tokens": 12},
        "evaluation": {"every": 0, "prompts": 16, "temperature": 1.0},
    }  # fmt: skip
    return start(load(tree, [f"{k}={json.dumps(v)}" for k, v in changes.items()]), folder, say=lambda line: None, resume="auto")


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in RunFolder(folder).rows("events.jsonl") if e["kind"] == kind]


def test_a_guard_that_lowers_the_learning_rate_changes_the_next_update_and_is_kept_by_the_checkpoint(tmp_path: Path) -> None:
    health = {"training.health.actions": {"kl_alarm": "lower_lr"}, "training.health.kl_alarm": 1e-9}
    run = train(tmp_path / "a", **health, **{"training.steps": 2})
    rates = [row["lr"] for row in RunFolder(run.folder).rows("metrics.jsonl")]
    assert rates == [3e-3, 1.5e-3]
    (event,) = [e for e in events(run.folder, "guard") if e["guard"] == "kl_alarm"]
    assert event["done"] == "lr is now 0.5 times what the recipe says"
    again = train(tmp_path / "a", **health, **{"training.steps": 3})
    assert [row["lr"] for row in RunFolder(again.folder).rows("metrics.jsonl")] == [3e-3, 1.5e-3, 1.5e-3]


def test_a_run_whose_held_out_results_fall_ends_at_its_best_checkpoint(tmp_path: Path) -> None:
    """Length is paid for, and held out the shorter answer is the better one."""
    changes = {"evaluation.every": 1, "evaluation.metric": "length_mean", "evaluation.better": "lower", "training.steps": 12}
    with pytest.raises(Problem, match="no checkpoint is better than the start"):
        train(tmp_path / "bad", **changes, **{"training.lr": 0.03})
    (stop,) = events(tmp_path / "bad", "stop")
    found = [e["guard"] for e in events(tmp_path / "bad", "guard") if e["metric"].startswith("health/")]
    assert stop["failed"] and {"accuracy_below_start", "accuracy_falling"} & set(found)


def test_restoring_sets_later_checkpoints_aside_and_every_name_means_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measured figure is made up here (better, then worse and worse): what follows from it is real."""
    scores = iter([0.5, 0.9, 0.3, 0.2, 0.1])
    monkeypatch.setattr("policyloop.run.measure", lambda parts, version: Measured(next(scores)))
    run = train(tmp_path / "runs" / "r", **{"evaluation.every": 1, "training.steps": 4, "training.keep_last": 4})
    assert run.progress.step == 1
    names = {sub: sorted(p.name for p in (run.folder / sub).iterdir()) for sub in ("checkpoints", "aside")}
    assert names == {"checkpoints": ["00000001"], "aside": ["00000002", "00000003"]}
    assert resolve(str(run.folder)) == run.policy_path and run.policy_path.parent.name == "00000001"
    assert "the checkpoint of step 1 is restored" in events(run.folder, "stop")[0]["reason"]


class Measured:
    def __init__(self, accuracy: float) -> None:
        self.accuracy = accuracy

    def metrics(self) -> dict[str, float]:
        return {
            "eval/accuracy": self.accuracy,
            "eval/accuracy_low": self.accuracy - 0.05,
            "eval/accuracy_high": self.accuracy + 0.05,
        }

    def sentence(self) -> str:
        return f"accuracy {self.accuracy}"
