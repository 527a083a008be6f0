"""policyloop and TRL in turn, the same GRPO step: same model, prompts, group size and forced lengths, each side in a process of its own.

A step is everything from prompts to weights that the next rollout samples from. TRL runs at its best: gradient checkpointing off, and
with it on as a second line; logits in one batch; no reference (beta 0), no evaluation, no logging. The sides take turns within one
run, so that what else the machine does hits both; medians and ratios are what counts. Writes a dated JSON.

    pip install trl==1.16.0
    python benchmarks/versus_trl.py --tokens 64 --rounds 3
    python benchmarks/versus_trl.py --tokens 64 --ours-kept 2          # GFPO, two of eight, against TRL's GRPO
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIDES = ("ours", "trl", "trl-checkpointing")


def tasks_prompts(a: argparse.Namespace) -> list[Any]:
    from policyloop.tasks import DataSettings, load_task

    return list(load_task(DataSettings(task=a.task, path=a.data), 0).train())[: a.prompts]


def told(**figures: float) -> None:
    print("FIGURES " + json.dumps(figures), flush=True)


def await_turn() -> bool:
    """One line on stdin is one step; the end of stdin is the end."""
    return bool(sys.stdin.readline())


def ours(a: argparse.Namespace) -> None:
    from policyloop.bench import Shape
    from policyloop.bench.step import Step
    from policyloop.models.memory import peak_rss_bytes

    shape = Shape(prompts=a.prompts, group=a.group, tokens=a.tokens, kept=a.ours_kept, precision=a.precision, threads=a.threads)
    step = Step(a.model, shape, tasks_prompts(a))
    while await_turn():
        parts = step()
        told(step_s=parts.total_s, cpu_s=parts.cpu_s, rollout_s=parts.rollout_s, update_s=parts.update_s, rss=peak_rss_bytes())


def trl(a: argparse.Namespace, checkpointing: bool) -> None:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from policyloop.models.catalogue import resolve
    from policyloop.models.memory import peak_rss_bytes

    torch.set_num_threads(a.threads)
    path = resolve(a.model)
    rows = [{"prompt": [{"role": m.role, "content": m.content} for m in p.messages]} for p in tasks_prompts(a)]
    began = [0.0, 0.0]

    class Turns(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not await_turn():
                os._exit(0)
            began[:] = [time.perf_counter(), time.process_time()]

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            told(step_s=time.perf_counter() - began[0], cpu_s=time.process_time() - began[1], rss=peak_rss_bytes())

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=a.prompts * a.group,
        num_generations=a.group,
        max_completion_length=a.tokens,
        generation_kwargs={"min_new_tokens": a.tokens},
        max_steps=10_000,
        learning_rate=1e-6,
        beta=0.0,
        bf16=a.precision == "bf16",
        gradient_checkpointing=checkpointing,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(path),
        args=config,
        train_dataset=Dataset.from_list(rows * 64),
        reward_funcs=lambda completions, **kwargs: [float(i % 2) for i in range(len(completions))],
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Turns()],
    ).train()


class Side:
    """A process that does one step a line."""

    def __init__(self, name: str, argv: list[str], threads: int) -> None:
        log = open(Path(tempfile.gettempdir()) / f"versus-trl-{name}.log", "w")  # noqa: SIM115  (the process writes to it as long as it lives)
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, *argv, "--side", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=env,
        )

    def step(self) -> dict[str, float]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("FIGURES "):
                return json.loads(line.removeprefix("FIGURES "))
        raise SystemExit(f"a side ended with {self.process.wait()}; its words are in {tempfile.gettempdir()}")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--task", default="gsm8k")
    parser.add_argument("--data", default="../shared/data/gsm8k")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ours-kept", type=int, default=0, help="GFPO: completions of each group that ours learns from")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.side:
        return ours(a) if a.side == "ours" else trl(a, a.side == "trl-checkpointing")
    sides = {name: Side(name, sys.argv[1:], a.threads) for name in a.sides}
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(a.rounds + 1):
        took = {name: side.step() for name, side in sides.items()}
        print(f"{'warm-up' if number == 0 else number}:", {n: round(f["step_s"], 2) for n, f in took.items()}, flush=True)
        rounds += [took] if number else []
    for side in sides.values():
        side.close()
    medians = {n: {k: statistics.median(r[n][k] for r in rounds) for k in rounds[0][n]} for n in sides}
    best = {k: min(m[k] for n, m in medians.items() if n != "ours") for k in ("step_s", "cpu_s", "rss")}
    ratios = {
        "step": best["step_s"] / medians["ours"]["step_s"],
        "cpu": best["cpu_s"] / medians["ours"]["cpu_s"],
        "memory": medians["ours"]["rss"] / best["rss"],
    }
    print(json.dumps(medians, indent=1), "\nTRL's best over ours:", {k: round(v, 2) for k, v in ratios.items()})
    at = dt.datetime.now(dt.UTC)
    out = Path(__file__).parent / "results" / f"versus-trl-{a.precision}-{a.tokens}-{a.ours_kept}-{at:%Y-%m-%d}.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(
        json.dumps({"at": at.isoformat(), "options": vars(a), "median": medians, "ratios": ratios, "rounds": rounds}) + "\n"
    )
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
