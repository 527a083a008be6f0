"""One GRPO step from prompts to published weights, timed in its parts: what `policyloop bench` and the comparisons with peers run.

In: a model, prompts and a `Shape`. Out per step: `Parts`, seconds of rollout, update and publish. Rewards alternate 0 and 1, so that
every group has signal whatever the model says.

Example:
    >>> step = Step("smollm2-135m-instruct", Shape(tokens=64), prompts)
    >>> step().total_s
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from policyloop.algorithms import GFPO, GRPO
from policyloop.algorithms.parts.filter import TopK
from policyloop.bench import Shape
from policyloop.bench.floor import Rates, Weights, measure, rollout_s, update_s
from policyloop.engine import EngineSpec, Request
from policyloop.engine.builtin import BuiltinEngine
from policyloop.engine.rows import TextRenderer
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.catalogue import resolve
from policyloop.models.memory import peak_rss_bytes
from policyloop.models.policy import load_policy
from policyloop.models.template import load_renderer
from policyloop.training import TrainingSettings
from policyloop.training.trainer import Trainer
from policyloop.types import Group, Progress, Prompt, SamplingParams, Score

ENGINE_DTYPE = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds by the wall clock, and tokens: `new` sampled, `once` of prompts each counted once, `trained` in the update."""

    rollout_s: float
    update_s: float
    publish_s: float
    cpu_s: float
    new: int
    once: int
    trained: int

    @property
    def total_s(self) -> float:
        return self.rollout_s + self.update_s + self.publish_s


class Endless:
    """A renderer without stop tokens: every completion gets its full length, as the comparison needs it."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)


class Step:
    """Loads the model once for the engine and, with `update`, once for the policy; calling it does one step."""

    def __init__(self, model: str, shape: Shape, prompts: Sequence[Prompt], *, update: bool = True) -> None:
        torch.set_num_threads(shape.threads)
        self.shape, self.number = shape, 0
        path = resolve(model)
        renderer = load_renderer(path)
        self.prompts = prompts[: shape.prompts]
        self.ids = [renderer.prompt_ids(p) for p in self.prompts]
        self.engine = BuiltinEngine.load(EngineSpec(str(path), "bench#0", dtype=ENGINE_DTYPE[shape.precision]))
        self.engine.renderer = cast(TextRenderer, Endless(self.engine.renderer))
        self.body, self.head = linear_weights(path)
        self.trainer = self._trainer(model) if update else None

    def _trainer(self, model: str) -> Trainer:
        shape = self.shape
        lora = LoraSettings(r=shape.lora_r, target_modules="all-linear") if shape.lora_r else None
        policy = load_policy(ModelSettings(base_model_path=model, lora=lora), shape.precision, "cpu", 0)
        keep = TopK(k=shape.kept, metric="shortest") if shape.kept else None
        objective = dataclasses.replace(GFPO if keep else GRPO, group_size=shape.group, filter=keep)
        return Trainer(policy, objective, TrainingSettings(lr=1e-6), temperature=1.0)

    def __call__(self) -> Parts:
        self.number += 1
        params = SamplingParams(max_new_tokens=self.shape.tokens, n=self.shape.group)
        cpu, start = time.process_time(), time.perf_counter()
        done = self.engine.run(
            [Request(f"{self.number}/{p.id}", ids, params) for p, ids in zip(self.prompts, self.ids, strict=True)]
        )
        sampled = time.perf_counter()
        if self.trainer:
            self.trainer.update(self._scored(done), Progress(steps=1))
        updated = time.perf_counter()
        if self.trainer:
            self.engine.publish(self.trainer.weights(f"bench#{self.number}"))
        ended = time.perf_counter()
        new = sum(len(c.token_ids) for c in done)
        return Parts(
            rollout_s=sampled - start,
            update_s=updated - sampled,
            publish_s=ended - updated,
            cpu_s=time.process_time() - cpu,
            new=new,
            once=sum(map(len, self.ids)),
            trained=new * (self.shape.kept or self.shape.group) // self.shape.group,
        )

    def _scored(self, done: Sequence[Any]) -> list[Group]:
        n = self.shape.group
        scores = tuple(Score(float(j % 2), metric=float(j % 2)) for j in range(n))
        return [Group(p.id, p, tuple(done[k * n : (k + 1) * n]), scores) for k, p in enumerate(self.prompts)]

    def weights(self) -> Weights:
        """What a token passes; the embedding table is read row by row and counts only as the head."""
        return Weights(self.body, self.head, width=4 if self.shape.precision == "fp32" else 2)


def linear_weights(folder: Path) -> tuple[int, int]:
    """Weights of the layers and of the head, from the config alone."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    model.tie_weights()
    tables = {id(m.weight): m.weight.numel() for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    total = sum(p.numel() for p in model.parameters())
    return total - sum(tables.values()), model.get_output_embeddings().weight.numel()


def figures(step: Step, parts: Parts, rates: Rates) -> dict[str, float]:
    """One step as the numbers that are compared: rates, and time over the floor of the same minute."""
    shape, weights = step.shape, step.weights()
    rows = shape.prompts * shape.group
    floor_rollout = rollout_s(weights, rates, prompt_tokens=parts.once, rows=rows, new_tokens=shape.tokens)
    floor_update = update_s(weights, rates, prompt_tokens=parts.once, trained_tokens=parts.trained, full=not shape.lora_r)
    return {
        "step_s": parts.total_s,  # without `update` the figures of the update say nothing and are not shown
        "rollout_s": parts.rollout_s,
        "update_s": parts.update_s,
        "publish_s": parts.publish_s,
        "cpu_s": parts.cpu_s,
        "samples_per_s": rows / parts.total_s,
        "rollout_tokens_per_s": parts.new / parts.rollout_s,
        "update_tokens_per_s": parts.trained / parts.update_s,
        "rollout_over_floor": parts.rollout_s / floor_rollout,
        "update_over_floor": parts.update_s / floor_update,
        "gemm_gflop_s": rates.flop_s / 1e9,
        "read_gb_s": rates.read_bytes_s / 1e9,
        "peak_rss_gb": peak_rss_bytes() / 1e9,
    }


def rounds(step: Step) -> list[dict[str, float]]:
    """`shape.rounds` measured steps after one that warms up, rates measured before each."""
    step()
    return [figures(step, step(), measure(step.shape.precision)) for _ in range(step.shape.rounds)]
