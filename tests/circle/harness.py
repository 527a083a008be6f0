"""A small real run: tiny model, real engine, real rewards, real checkpoints. Shared by the kill tests, in this process and in others.

`python harness.py RUN` trains (or resumes) in RUN, as the command line would.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

STEPS = 4


def digits(completions: list[str]) -> list[float]:
    """A reward with a spread from the first step on: the share of digits."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def recipe(**changes: Any) -> Any:
    from policyloop.recipe import load

    tree = {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
        "data": {"task": "tiny_arithmetic"},
        "rewards": {"terms": [{f"{Path(__file__)}:digits": {}}], "range_control": {"mode": "running_z"}},
        "rl_strategy": {
            "type": "gfpo",
            "group_size": 4,
            "filter": {"top_k": {"k": 3, "metric": "shortest"}},
            "updates_per_rollout": 2,
        },
        "training": {
            "steps": STEPS,
            "prompts_per_step": 4,
            "lr": 1e-3,
            "save_steps": 2,
            "threads": 1,
            "precision": "fp32",
            "signal_check": {"prompts": 4},
        },
        "rollout": {"max_new_tokens": 8},
        "evaluation": {"every": 2, "prompts": 8},
    }
    return load(tree, [f"{key}={value}" for key, value in changes.items()])


def run(folder: Path, **changes: Any) -> Any:
    from policyloop.run import start

    return start(recipe(**changes), folder, resume="auto", say=lambda line: None)


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]], list[str]]:
    """What must not depend on kills: final weights and optimizer, all metrics but time/* and sys/*, every sampled token."""
    final = folder / "checkpoints" / f"{STEPS:08d}"
    weights = hashlib.sha256(
        (final / "policy/model.safetensors").read_bytes() + (final / "optimizer/state.safetensors").read_bytes()
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in rows]
    samples = [p.read_text() for p in sorted((folder / "samples").glob("*.jsonl"))]
    return weights.hexdigest(), rows, samples


def outcome_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    from policyloop.errors import Problem

    torch.set_num_threads(1)
    try:
        run(Path(sys.argv[1]))
    except Problem as problem:
        print(problem, flush=True)
        sys.exit(problem.exit_code)
