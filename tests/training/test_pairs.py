"""Runs on pairs from YAML: DPO and the reward model, resumable, evaluated on held-out pairs, the reward model in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from policyloop.errors import BadInput
from policyloop.evaluation.report import write_report
from policyloop.models.reward import open_reward_model
from policyloop.recipe import from_tree
from policyloop.run import start
from policyloop.training.checkpoint import Checkpoints
from policyloop.types import Prompt


def recipe(strategy: dict[str, Any], **training: Any) -> Any:
    return from_tree(
        {
            "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
            "data": {"task": "tiny_arithmetic", "options": {"pairs": 64, "terms": 2}},
            "rl_strategy": strategy,
            "training": {
                "steps": 2,
                "prompts_per_step": 8,
                "lr": 1e-3,
                "save_steps": 1,
                "threads": 1,
                "keep_last": 5,
                **training,
            },
            "rollout": {"samples": 0},
            "evaluation": {"every": 1, "prompts": 8},
        }
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["dpo", "orpo"])
def test_a_preference_run(kind: str, tmp_path: Path) -> None:
    run = start(recipe({"type": kind}), tmp_path / kind, say=lambda line: None)
    first, second = lines(run.folder)
    assert first["update/ok"] == 1 and first["pairs/count"] == 8 and 0 <= second["eval/accuracy"] <= 1
    if kind == "dpo":  # policy = reference at the start: h is 0 everywhere, and the loss log 2
        assert first["loss/preference"] == pytest.approx(0.693147, abs=1e-5) and first["rewards/margin"] == pytest.approx(
            0, abs=1e-6
        )
        assert second["loss/preference"] < first["loss/preference"] + 0.1 and second["logps/chosen_drift"] != 0
    assert run.parts.engine is None
    assert "untouched" in write_report([run.folder], tmp_path / "report.html").read_text()


def test_reward_model_run_resumes_bit_for_bit_and_leaves_its_own_folder(tmp_path: Path) -> None:
    whole = start(recipe({"type": "reward_model"}), tmp_path / "whole", say=lambda line: None)
    start(recipe({"type": "reward_model"}, steps=1), tmp_path / "parts", say=lambda line: None)
    again = start(recipe({"type": "reward_model"}), tmp_path / "parts", resume="auto", say=lambda line: None)
    one, two = (Checkpoints(r.folder / "checkpoints").latest() for r in (whole, again))
    assert one is not None and two is not None
    for name in ("policy/model.safetensors", "policy/reward_head.safetensors", "optimizer/state.safetensors"):
        assert one.read(name) == two.read(name), name
    model = open_reward_model(whole.folder)
    assert model.about["step"] == 2 and model.about["std"] > 0 and model.about["held_out"]["accuracy"] >= 0
    scores = model.scores([Prompt.make("t", "2+3=")] * 2, ["2+3=5#5", "2+3=6#6"])
    assert len(scores) == 2 and all(torch.isfinite(torch.tensor(scores)))
    assert lines(whole.folder)[0]["loss/reward_model"] == pytest.approx(0.693147, abs=1e-5)


def test_prompts_that_are_no_pairs_are_refused_before_the_first_step(tmp_path: Path) -> None:
    tree = recipe({"type": "dpo"})
    bare = from_tree(
        {
            "model": {"base_model_path": "tiny", "template": "plain"},
            "data": {"task": "tiny_arithmetic"},
            "rl_strategy": {"type": "dpo"},
        }
    )
    with pytest.raises(BadInput, match="is no pair"):
        start(bare, tmp_path / "bare", say=lambda line: None)
    assert tree.rl_strategy.whole_groups


def test_limits_of_the_fields() -> None:
    for strategy in (
        {"type": "dpo", "loss": {"sigmoid": {"beta": 0}}},
        {"type": "rdpo", "loss": {"robust": {"label_smoothing": 0.5}}},
    ):
        with pytest.raises(BadInput, match=r"rl_strategy\.loss\."):
            recipe(strategy)
    with pytest.raises(BadInput, match=r"rl_strategy\.center"):
        recipe({"type": "reward_model", "center": -1.0})
