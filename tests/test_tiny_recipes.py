"""The CPU twins: every recipe of a policy-gradient algorithm on the tiny model trains for two steps, and every algorithm of the table has one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from policyloop.algorithms import ALGORITHMS, PolicyGradient
from policyloop.algorithms.parts.filter import DropConstant
from policyloop.config import load_yaml
from policyloop.recipe import load
from policyloop.run import start

RECIPES = Path(__file__).parents[1] / "recipes"
FAST = ("tiny-ppo", "tiny-dapo", "tiny-gfpo-adaptive")  # the others take the same code path: in the slow suite
TINY = [p for p in sorted(RECIPES.glob("tiny-*.yaml")) if isinstance(load(p).rl_strategy, PolicyGradient)]
WITHOUT = {"grpo_paper", "rloo_sequence"}  # variants whose parent has one


def digits(completions: list[str]) -> list[float]:
    """A reward with a spread from the first step on: the share of digits."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def test_every_algorithm_has_its_twin() -> None:
    named = {load_yaml(p)["rl_strategy"]["type"] for p in TINY}
    assert {name for name, a in ALGORITHMS.items() if isinstance(a, PolicyGradient)} - named - WITHOUT == set()


@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem, marks=[] if p.stem in FAST else pytest.mark.slow) for p in TINY])
def test_two_steps(path: Path, tmp_path: Path) -> None:
    """From the untrained model, with a reward that varies; sizes shrunk, everything else as the file says."""
    strategy = load(path).rl_strategy
    assert isinstance(strategy, PolicyGradient)
    group = strategy.group_size
    changes: dict[str, Any] = {
        "model.base_model_path": "tiny",
        "model.critic.warmup_steps": 1,
        "training.steps": 2,
        "training.prompts_per_step": max(4, 8 // group),
        "training.signal_check": "null",
        "training.warmup_steps": 0,
        "rollout.max_new_tokens": 12,
        "evaluation.every": 0,
        "rewards.terms": f"[{{'{__file__}:digits': {{}}}}]",
    }
    if isinstance(strategy.filter, DropConstant):
        changes["rl_strategy.filter.drop_constant.threshold"] = -1  # an untrained model has no right answer at all
    start(load(path, [f"{k}={v}" for k, v in changes.items()]), tmp_path / "run", say=lambda line: None)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and rows[-1]["update/ok"] >= 1 and rows[-1]["update/nan"] == 0
    assert rows[-1]["grad_norm"] > 0 and all(not math.isinf(v) for row in rows for v in row.values())
