"""A run folder such as training leaves it, made by formula: sixty steps, three rewards (one of them a loss), a filter, guards, evaluations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from policyloop.training.folder import RunFolder

CONFIG: dict[str, Any] = {
    "model": {"base_model_path": "smollm2-135m-instruct"},
    "data": {"task": "word_problems"},
    "rewards": {
        "terms": [
            {"correct": {"weight": 1.0, "name": "correct"}},
            {"format": {"pattern": "answer", "weight": 0.2, "name": "format"}},
            {"stop": {"weight": 0.5, "name": "stop"}},
        ],
        "combine": "sum",
    },
    "rl_strategy": {"type": "gfpo", "group_size": 4},
    "rollout": {"max_new_tokens": 32},
    "training": {"steps": 60, "lr": 2e-4},
    "evaluation": {"every": 20, "metric": "accuracy", "better": "higher", "max_new_tokens": None},
}
# text pieces, parts (correct, format, stop), log-probs before and after, advantage, kept
ANSWERS: list[tuple[list[str], tuple[float, float | None, float], list[float], list[float], float, bool]] = [
    (["She", " has", " 3", "+", "4", "=", "7", "<eos>"], (1, 1, 0), [-1.0, -0.4, -0.2, -0.9, -0.3, -0.2, -0.5, -0.6],
     [-0.9, -0.4, -0.2, -0.5, -0.3, -0.1, -0.2, -0.1], 1.21, True),
    (["7", "<eos>"], (1, 0, 0), [-2.0, -0.7], [-1.6, -0.65], 0.82, True),
    (["It", " is", " <b>8", "</b>", "\n", "\n", "8", "<eos>"], (0, None, 0), [-1.5, -0.2, -1.1, -0.3, -0.2, -0.3, -0.9, -0.4],
     [-1.6, -0.2, -1.6, -0.3, -0.2, -0.3, -1.1, -0.45], -0.61, True),
    (["Let", " me", " think", " about", " it", " step", " by", " step"], (0, 0, -1), [-1.0, -0.1, -0.4, -0.6, -0.2, -0.9, -0.1, -0.1],
     [-1.0, -0.1, -0.4, -0.6, -0.2, -0.9, -0.1, -0.1], 0.0, False),
]  # fmt: skip


def make_run(path: Path, steps: int = 60, offset: float = 0.0, config: dict[str, Any] | None = None) -> Path:
    """Figures rise smoothly with a wave on top, so that every expected number can be written down by hand."""
    folder = RunFolder.create(path, config or CONFIG, {"name": path.name, "code": {"policyloop": "0.1.0"}})
    for limit, right in ((32, 0.2), (128, 0.3)):
        folder.event("baseline", 0, limit_tokens=limit, accuracy=right, accuracy_low=right - 0.05, accuracy_high=right + 0.06, n=200.0, length_mean=30.0)  # fmt: skip
    folder.event("plan", 0, lines=["plan: 60 steps of 8 prompts x 4 = 32 sequences"])
    for step in range(1, steps + 1):
        folder.metrics(metrics(step, offset))
        if step % 20 == 0:
            folder.event("evaluation", step, **{k: v for k, v in metrics(step, offset).items() if k.startswith("eval/")})
        if step in (1, 5, 60):
            folder.samples(step, [group(step)])
    for step in (3, 9):
        folder.event("guard", step, guard="grad_norm_warn", sentence="grad_norm is 1.2, the limit is 1: watch the held-out curve", advice="watch")  # fmt: skip
    folder.event("resume", 30, checkpoint="00000030")
    folder.unlock()
    return path


def metrics(step: int, offset: float) -> dict[str, float]:
    part, wave = step / 60, 0.03 * math.sin(step)
    found = {
        "step": step,
        "reward/mean": 0.1 + 0.8 * part + wave + offset,
        "reward/part/correct": 0.1 + 0.7 * part + wave,
        "reward/part/format": 0.5 + 0.4 * part,
        "reward/part/stop": -0.6 + 0.5 * part,
        "length/mean": 28 - 12 * part + 10 * wave,
        "length/p95": 32.0,
        "length/truncated_frac": 0.6 * (1 - part),
        "groups/signal_frac": 0.5,
        "entropy": 1 - 0.6 * part + wave,
        "grad_norm": float("nan") if step == 7 else 0.5 + wave,
        "tokens/generated": 1000.0,
        "time/rollout_s": 2.0,
        "time/update_s": 1.0,
    }
    if step % 20 == 0:
        accuracy = {20: 0.5, 40: 0.8, 60: 0.75}[step] + offset
        found |= {"eval/accuracy": accuracy, "eval/accuracy_low": accuracy - 0.07, "eval/accuracy_high": accuracy + 0.06}
        found |= {"eval/length_mean": 30 - 15 * part, "eval/n": 200.0}
    return found


def group(step: int) -> dict[str, Any]:
    completions = []
    for texts, parts, before, after, advantage, keep in reversed(ANSWERS):
        components = dict(zip(("correct", "format", "stop"), parts, strict=True))
        reward = parts[0] + 0.2 * (parts[1] or 0.0) + 0.5 * parts[2]
        completions.append(
            {
                "text": "".join(texts).removesuffix("<eos>"),
                "token_ids": list(range(len(texts))),
                "tokens": texts,
                "logprobs": before,
                "logprobs_after": None if step == 5 else after,
                "finish_reason": "length" if parts[2] else "stop",
                "version": f"run#{step - 1}",
                "reward": reward,
                "components": components,
                "metric": float(parts[0]),
                "advantage": advantage,
                "keep": keep,
                "length": len(texts),
            }
        )
    return {
        "step": step, "uid": f"p{step}/0/0", "prompt_id": f"p{step}", "prompt": "She has 3 apples & gets 4.\nHow many?", "target": "7",
        "completions": completions,
    }  # fmt: skip
