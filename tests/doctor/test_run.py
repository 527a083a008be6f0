"""Real runs of the tiny model, each broken in one known way: the doctor names it, and a key to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policyloop.doctor.run import diagnose
from policyloop.errors import Problem
from policyloop.evaluation.report_data import read_run
from policyloop.recipe import load
from policyloop.run import start


def digits(completions: list[str]) -> list[float]:
    """A reward with a spread from the first step on: the share of digits."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def longer(completions: list[str]) -> list[float]:
    return [float(len(text)) for text in completions]


def lucky(completions: list[str]) -> list[float]:
    """Right or wrong by chance, seldom out of reach."""
    return [float(any(c in text for c in "0123")) for text in completions]


def equal(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


def mine(name: str, weight: float = 1.0) -> dict[str, Any]:
    return {f"{Path(__file__)}:{name}": {"weight": weight}}


# name -> (what is broken, the check that must name it, words its fix must hold)
BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "lr": ({"training.lr": 0.1, "rewards.terms": [mine("digits")]}, "kl_alarm", "lower training.lr (0.1 -> 0.033)"),
    "wrong": ({}, "never_right", "policyloop reward try"),
    "length": ({"rollout.max_new_tokens": 48, "rewards.terms": [mine("longer")]}, "length_reward_warn", "rewards.terms"),
    "cut": (
        {"rollout.max_new_tokens": 3, "rewards.terms": [mine("digits")]},
        "truncated_warn",
        "raise rollout.max_new_tokens (3 -> 6)",
    ),
    "equal": (
        {"rewards.terms": [mine("equal")]},
        "zero_std_warn",
        "rl_strategy.group_size (4 -> 8)",
    ),
    "filter": (
        {
            "rl_strategy.filter.top_k": {"k": 2, "metric": "token_efficiency"},
            "rl_strategy.advantage.group.baseline": "retained",
            "rewards.terms": [mine("lucky")],
        },
        "retained_zero_std_alarm",
        "baseline: group",
    ),
    "weights": ({"rewards.terms": [mine("longer", 1.0), mine("digits", 1e-3)]}, "dominance_warn", "normalize_then_sum"),
}


def run(folder: Path, **changes: Any) -> None:
    tree = {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
        "data": {"task": "tiny_arithmetic"},
        "rl_strategy": {"type": "grpo", "group_size": 4, "kl": None, "updates_per_rollout": 2},
        "training": {
            "steps": 3, "prompts_per_step": 4, "lr": 1e-4, "threads": 1, "precision": "fp32", "signal_check": None
        },
        "rollout": {"max_new_tokens": 10},
        "evaluation": {"every": 0},
    }  # fmt: skip
    try:
        start(load(tree, [f"{k}={json.dumps(v)}" for k, v in changes.items()]), folder, say=lambda line: None)
    except Problem as problem:
        assert "no group with any signal" in str(problem)


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_run_is_named_with_what_to_change(name: str, tmp_path: Path) -> None:
    changes, expected, words = BROKEN[name]
    run(tmp_path / "r", **changes)
    found = {check.name: check for check in diagnose(read_run(tmp_path / "r"))}
    assert expected in found, [c.line() for c in found.values()]
    assert words in found[expected].fix


def made(tmp_path: Path, rows: list[dict[str, Any]], events: list[dict[str, Any]], **config: Any) -> list[str]:
    """The names of what is found in a run folder written by hand."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n + 1, **row}) + "\n" for n, row in enumerate(rows)))
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    return [f"{c.verdict} {c.name}" for c in diagnose(read_run(folder))]


GOOD: dict[str, Any] = {"grad_norm": 0.2, "entropy": 0.4, "groups/zero_std_frac": 0.1, "approx_kl/k3": 0.001, "reward/std": 0.5}


def test_a_run_that_learns_is_left_alone(tmp_path: Path) -> None:
    rows = [{**GOOD, "reward/mean": 0.3 + 0.04 * n, "metric/mean": 0.3 + 0.04 * n} for n in range(12)]
    assert made(tmp_path, rows, [], training={"steps": 12}) == ["ok health"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"groups/zero_std_frac": 0.7}, "warn flat_reward"),
        ({"approx_kl/k3": 1e-9}, "warn flat_reward"),
        ({"micro_batch_tokens": 4096.0}, "note memory"),
        ({"reward/failed/x": 1.0}, "warn failed_rewards"),
        ({"update/skipped": 1.0}, "fail no_advantage"),
    ],
)
def test_what_only_the_whole_run_shows(tmp_path: Path, change: dict[str, float], found: str) -> None:
    rows = [{**GOOD, "reward/mean": 0.3 + 0.01 * (n % 2), "metric/mean": 0.3, **change} for n in range(12)]
    if "micro_batch_tokens" in change:
        rows[-1]["micro_batch_tokens"] = 2048.0
    assert found in made(tmp_path, rows, [], training={"steps": 12})


def test_a_run_without_an_end_and_one_that_a_guard_ended(tmp_path: Path) -> None:
    rows = [{**GOOD, "reward/mean": 0.3 + 0.1 * n} for n in range(2)]
    assert made(tmp_path, rows, [{"kind": "save", "step": 2}], training={"steps": 9})[-1] == "note ended"
    stop = {"kind": "stop", "step": 2, "reason": "five updates were not finite", "failed": True}
    (tmp_path / "b").mkdir()
    assert made(tmp_path / "b", rows, [stop], training={"steps": 9})[0] == "fail ended"
