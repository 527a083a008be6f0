"""Rollout and update of one GRPO step, in turn, several times: tokens per second and how far from this machine's own floor.

The floor is flop ÷ measured GEMM rate, measured in the same run; nothing here is a constant from a page. Prints a table and writes a dated JSON.

    python benchmarks/step.py --prompts 4 --group 8 --tokens 64 --rounds 3
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from policyloop.algorithms import GRPO
from policyloop.engine import ENGINES, EngineSpec, Request
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.catalogue import resolve
from policyloop.models.policy import load_policy
from policyloop.models.template import load_renderer
from policyloop.tasks import DataSettings, load_task
from policyloop.training import TrainingSettings
from policyloop.training.trainer import Trainer
from policyloop.types import Group, Progress, SamplingParams, Score


def gemm_flops() -> float:
    """float32 multiply-adds of a 1024-cube, flop per second, median of five."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        a @ b
        rates.append(2 * 1024**3 / (time.perf_counter() - start))
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    path = resolve(a.model)
    renderer = load_renderer(path)
    engine = ENGINES["builtin"](EngineSpec(str(path), "bench#0"))
    policy = load_policy(ModelSettings(base_model_path=a.model, lora=LoraSettings(target_modules="all-linear")), "fp32", "cpu", 0)
    trainer = Trainer(policy, GRPO, TrainingSettings(lr=1e-9), temperature=1.0)
    prompts = load_task(DataSettings(task="word_problems"), 0).train()[: a.prompts]
    params = SamplingParams(max_new_tokens=a.tokens, n=a.group)
    flop = 2 * policy.parameter_count()
    rounds: list[dict[str, Any]] = []
    for i in range(a.rounds + 1):
        rate = gemm_flops()
        start = time.perf_counter()
        done = engine.run([Request(f"{i}/{p.id}", renderer.prompt_ids(p), params) for p in prompts])
        sampled = time.perf_counter() - start
        groups = [Group(p.id, p, tuple(done[k * a.group : (k + 1) * a.group])) for k, p in enumerate(prompts)]
        scored = [
            Group(g.uid, g.prompt, g.completions, tuple(Score(j % 2, metric=j % 2) for j in range(a.group))) for g in groups
        ]
        start = time.perf_counter()
        trainer.update(scored, Progress(steps=1))
        updated = time.perf_counter() - start
        new = sum(len(c.token_ids) for c in done)
        once = sum(len(g.completions[0].prompt_token_ids) for g in groups)
        floor_rollout, floor_update = (new + once) * flop / rate, (new + once) * flop * 3 / rate
        rounds.append(
            {
                "rollout_tokens_per_s": new / sampled,
                "update_tokens_per_s": new / updated,
                "rollout_over_floor": sampled / floor_rollout,
                "update_over_floor": updated / floor_update,
                "gemm_gflops": rate / 1e9,
            }
        )
    medians = {key: statistics.median(r[key] for r in rounds[1:]) for key in rounds[0]}  # the first round warms up
    result = {
        "at": dt.date.today().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "options": vars(a),
        "median": medians,
    }
    for key, value in medians.items():
        print(f"{key:24} {value:8.2f}")
    out = Path(__file__).parent / "results" / f"step-{result['at']}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
