"""What the ranks of the tests run: `python ranks_harness.py FOLDER NAME=DOTTED=VALUE,... ...` trains one run per NAME in FOLDER.

Started by torch.distributed.run it is one of several ranks, else the only process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

STEPS = 3


def digits(completions: list[str]) -> list[float]:
    """A reward with a spread from the first step on: the share of digits."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def recipe(changes: list[str]) -> Any:
    from policyloop.recipe import load

    tree = {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
        "data": {"task": "tiny_arithmetic"},
        "rewards": {"terms": [{f"{Path(__file__)}:digits": {}}]},
        "rl_strategy": {"type": "grpo", "group_size": 4},
        "training": {
            "steps": STEPS,
            "prompts_per_step": 3,  # an odd number of groups: one of them is split over two ranks
            "lr": 1e-3,
            "save_steps": 2,
            "threads": 1,
            "precision": "fp32",
            "micro_batch_tokens": 48,
            "signal_check": None,
        },
        "rollout": {"max_new_tokens": 8},
        "evaluation": {"every": 0},
    }
    return load(tree, changes)


def main(folder: Path, runs: list[str]) -> None:
    from torch.distributed.tensor import DTensor

    from policyloop.errors import Problem
    from policyloop.run import start

    for line in runs:
        name, _, changes = line.partition("=")
        try:
            made = start(recipe(changes.split(",") if changes else []), folder / name, resume="auto", say=lambda line: None)
        except Problem as problem:
            print(f"rank {os.environ.get('RANK', '0')}: {problem}", file=sys.stderr)
            sys.exit(problem.exit_code)
        parameters = list(made.parts.policy.parameters())
        held = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters)
        about = {
            "dtensor": all(isinstance(p, DTensor) for p in parameters),
            "held": held,
            "all": sum(p.numel() for p in parameters),
        }
        (folder / f"{name}.{os.environ.get('RANK', '0')}.json").write_text(json.dumps(about))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
