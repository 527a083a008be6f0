"""The Python twin: a user's rows and function, in a running event loop as in a notebook."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

import policyloop
from policyloop.errors import BadInput

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(5)]


def share_of_digits(completions: list[str], answer: list[str]) -> list[float]:
    assert len(answer) == len(completions)
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def test_rows_function_and_algorithm_in_a_notebook(tmp_path: Path) -> None:
    torch.set_num_threads(1)

    async def cell() -> policyloop.quick.Run:  # type: ignore[name-defined]
        return policyloop.train(
            model="tiny",
            data=ROWS,
            reward=share_of_digits,
            algorithm=policyloop.GRPO(group_size=4, kl=None),
            run=tmp_path / "run",
            lora=None,
            template="plain",
            rollout={"max_new_tokens": 8},
            steps=2,
            prompts_per_step=4,
            lr=1e-3,
            say=lambda line: None,
        )

    run = asyncio.run(cell())
    assert run.progress.step == 2
    assert (run.policy_path / "model.safetensors").exists()
    found = run.evaluate(prompts=2, max_new_tokens=4)
    assert len(found.items) == 2 and found.version == "run#2"


def test_unknown_training_field_is_answered(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"unknown key training\.stepps; did you mean steps"):
        policyloop.train(model="tiny", data=ROWS, run=tmp_path / "r", stepps=2)
