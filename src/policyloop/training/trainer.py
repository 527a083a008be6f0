"""The update: one step's scored groups in, optimizer steps and metrics out. No branch on an algorithm: the objective says what it needs.

    groups -> mark -> Batch -> old, reference log-probs, values (only if needed) -> advantages -> per optimizer step: weights for the whole
    step -> micro-batches by token budget -> backward -> finite check -> clip -> step

Because weights are fixed before the split and micro-batches sum, neither the split nor an out-of-memory replay changes a gradient.

Example:
    >>> trainer = Trainer(policy, GRPO, TrainingSettings(lr=2e-4), temperature=0.8)
    >>> trainer.update(groups, Progress(step=0, steps=20))["grad_norm"]
"""

from __future__ import annotations

import base64
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from policyloop.algorithms.loss import Stat
from policyloop.algorithms.objective import ActorCritic, Objective, Repeating
from policyloop.algorithms.parts.controller import Controller, controllers_of, moved
from policyloop.algorithms.parts.schedule import scaled
from policyloop.engine import Weights
from policyloop.errors import Problem
from policyloop.models.critic import Critic
from policyloop.models.pack import pack, split
from policyloop.models.policy import PolicyModel, digest
from policyloop.models.sharded import laid_out, whole
from policyloop.rollout.batch import Tokens, to_batch
from policyloop.training import TrainingSettings
from policyloop.training.ranks import Ranks, without_sync
from policyloop.types import Batch, Group, Outputs, Progress

Stats = dict[str, Stat]
T = TypeVar("T")
CRITIC = "value_net/"  # the critic's own folder in a checkpoint


@dataclass(slots=True)
class Seen:
    """The last step as the objective saw it: groups with their keep marks, and one advantage per row (its mean over tokens)."""

    groups: list[Group]
    advantages_N: list[float]


class Trainer:
    """Owns the optimizer and the order of one update. Every rank gets all groups and learns from its share of their rows; ranks and
    micro-batches sum."""

    def __init__(
        self,
        policy: PolicyModel,
        objective: Objective,
        settings: TrainingSettings,
        *,
        temperature: float = 1.0,
        lr: float | None = None,
        critic: Critic | None = None,
        critic_warmup: int = 0,
        ranks: Ranks | None = None,
        on_bad: Callable[[Mapping[str, Any]], None] = lambda info: None,
    ) -> None:
        self.policy, self.objective, self.settings = policy, objective, settings
        self.temperature, self.ranks, self.on_bad = temperature, ranks or Ranks(), on_bad
        self.module = self.ranks.wrap(policy)  # before the optimizer: sharding makes new parameters
        self.lr = lr if lr is not None else (settings.lr or 3e-5)
        self.names = [name for name, _ in policy.trainable()]
        self.parameters = [p for _, p in policy.trainable()]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=self.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
        )
        self.scaler = torch.amp.GradScaler(enabled=policy.precision == "fp16" and torch.cuda.is_available())
        self.budget = settings.micro_batch_tokens
        self.updates = self.bad_in_a_row = self.skipped_in_a_row = self.bad_total = 0
        self.controllers: dict[str, Controller] = controllers_of(objective)
        assert (critic is not None) == objective.needs_critic, "an objective with a value loss needs a critic, another has none"
        self.critic, self.critic_warmup = critic, critic_warmup
        self.factors: dict[str, float] = {}  # what guards have done to `lr` and to numbers of the algorithm
        self.seen = Seen([], [])

    # --- one step -----------------------------------------------------------------------------------------------------------

    def update(self, groups: Sequence[Group], progress: Progress) -> dict[str, float]:
        """Learn from one rollout. Returns flat metrics; the old weights stay where a step was not finite or had no signal."""
        start = time.monotonic()
        for controller in self.controllers.values():
            controller.meet(groups)
        objective = scaled(self.objective.at(progress, {name: c.value for name, c in self.controllers.items()}), self.factors)
        marked = objective.mark(groups)
        batch, tokens = to_batch(marked)
        batch = self._measure(objective, batch, tokens)
        batch = objective.prepare(batch)
        assert batch.advantages_NT is None or not batch.advantages_NT.requires_grad
        self.seen = Seen(marked, _row_means(batch))
        stats: Stats = objective.describe(batch)
        outcome, norm = self._steps(objective, batch, tokens, stats, progress)
        found = {name: stat.result() for name, stat in sorted(stats.items())}
        numbers = {f"number/{path}": value for path, value in moved(self.objective, objective).items()}
        for controller in self.controllers.values():
            numbers |= controller.metrics()
            controller.observe(found)
        return {
            **found,
            **numbers,
            **outcome,
            "grad_norm": norm,
            "lr": self._lr(progress),
            "micro_batch_tokens": float(self.budget),
            "time/update_s": time.monotonic() - start,
        }

    def _steps(
        self, objective: Objective, batch: Batch, tokens: list[Tokens], stats: Stats, progress: Progress
    ) -> tuple[dict[str, float], float]:
        """Every optimizer step of one rollout, or those until the policy has moved enough. Returns what became of them and the largest norm."""
        outcome = {"update/ok": 0.0, "update/skipped": 0.0, "update/nan": 0.0}
        epochs, target = (objective.epochs_per_rollout, objective.target_kl) if isinstance(objective, Repeating) else (1, None)
        largest = 0.0
        for epoch in range(epochs):
            seed = f"{self.settings.seed}/{progress.step}" + (f"/{epoch}" if epoch else "")
            for index in minibatches(batch.group_N.tolist(), objective.updates_per_rollout, seed):
                fresh: Stats = {}
                kind, norm = self._step(objective, batch.rows(index), [tokens[i] for i in index], fresh, progress)
                outcome[f"update/{kind}"] = outcome.get(f"update/{kind}", 0.0) + 1
                largest = norm if math.isnan(norm) else max(largest, norm)
                merge(stats, fresh)
                if target is not None and "approx_kl/k3" in fresh and fresh["approx_kl/k3"].result() > 1.5 * target:
                    return {**outcome, "update/early_stop": 1.0}, largest
        return outcome, largest

    def _measure(self, objective: Objective, batch: Batch, tokens: list[Tokens]) -> Batch:
        """Old and reference log-probs and the critic's values, each only if something reads them."""
        if objective.needs_old(objective.updates_per_rollout):
            batch.old_logprobs_NT = self.logprobs(batch, tokens)
        if objective.needs_reference:
            with self.policy.reference():
                batch.ref_logprobs_NT = self.logprobs(batch, tokens)
        if self.critic is not None:
            batch.values_NT, batch.after_N = self._within_memory(lambda: self._values(batch, tokens))
        return batch

    def _values(self, batch: Batch, tokens: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """(N, T) the value before each token, (N,) that after the last: one position more per row, whose own token nobody reads."""
        assert self.critic is not None
        rows = [(t.group, t.prompt, (*t.completion, 0)) for t in tokens]
        wide = torch.nn.functional.pad(batch.mask_NT, (0, 1))
        last_N = torch.tensor([len(t.completion) for t in tokens])
        wide[torch.arange(len(rows)), last_N] = True
        out = torch.zeros(wide.shape, dtype=torch.float32)
        for index in split(rows, self.budget):
            width = max(len(rows[i][2]) for i in index)
            out[index, :width] = self.critic.values(pack([rows[i] for i in index], wide[index, :width]))
        return torch.where(batch.mask_NT, out[:, :-1], 0.0), out[torch.arange(len(rows)), last_N]

    def logprobs(self, batch: Batch, tokens: Sequence[Tokens]) -> Tensor:
        """(N, T) float32 log-probs at the sampling temperature under the weights as they are, 0 outside the mask."""
        return self._within_memory(lambda: self._logprobs(batch, tokens))

    @torch.no_grad()
    def _logprobs(self, batch: Batch, tokens: Sequence[Tokens]) -> Tensor:
        out = torch.zeros(batch.mask_NT.shape, dtype=torch.float32)
        for index, real in self._mine(tokens, list(range(len(tokens)))):
            outputs, width = self._forward(self.policy, batch.rows(index), [tokens[i] for i in index], entropy=False)
            if real:
                out[index, :width] = outputs.logprobs_NT.float().cpu()
        return self.ranks.total(out)

    def _mine(self, tokens: Sequence[Tokens], rows: Sequence[int], whole_groups: bool = False) -> list[tuple[list[int], bool]]:
        """This rank's micro-batches of `rows`. Every rank gets the same number (forwards and backwards of sharded models are in step);
        False marks one that only fills up, whose result does not count."""
        units = [[n] for n in rows]
        if whole_groups:
            units = [list(g) for _, g in groupby(rows, key=lambda n: tokens[n].group)]
        sizes = [sum(len(tokens[n].prompt) + len(tokens[n].completion) for n in unit) for unit in units]
        mine = [n for k in self.ranks.share(sizes) for n in units[k]]
        inputs = [(tokens[n].group, tokens[n].prompt, tokens[n].completion) for n in mine]
        parts = [[mine[i] for i in part] for part in split(inputs, self.budget, whole_groups=whole_groups)] if mine else []
        missing = self.ranks.most(len(parts)) - len(parts)
        return [*((part, True) for part in parts), *((units[0], False) for _ in range(missing))]

    def _step(
        self, objective: Objective, batch: Batch, tokens: list[Tokens], stats: Stats, progress: Progress
    ) -> tuple[str, float]:
        """One optimizer step: `ok`, `skipped` (no row has any term) or `nan` (not finite: dumped, weights untouched)."""
        batch = objective.weigh(batch)
        if (critic := self.critic) is not None:
            if not self._within_memory(lambda: self._teach(critic, objective, batch, tokens, stats)):
                self._refuse(math.nan, math.nan, tokens, list(range(len(tokens))), progress)
                return "nan", math.nan
            if progress.step < self.critic_warmup:
                return "frozen", 0.0
        rows = objective.active(batch).nonzero()[:, 0].tolist()
        if not rows:
            self.skipped_in_a_row += 1
            return "skipped", 0.0
        self.skipped_in_a_row = 0
        loss, fresh = self._accumulate(objective, batch, tokens, rows)
        self.scaler.unscale_(self.optimizer)
        limit = self.settings.max_grad_norm
        norm = float(whole(torch.nn.utils.clip_grad_norm_(self.parameters, math.inf if limit is None else limit)))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._refuse(loss, norm, tokens, rows, progress)
            return "nan", norm if math.isfinite(norm) else float("nan")
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr(progress)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        self.bad_in_a_row = 0
        merge(stats, fresh)
        return "ok", norm

    def _teach(self, critic: Critic, objective: Objective, batch: Batch, tokens: list[Tokens], stats: Stats) -> bool:
        """The critic's own step on the same rows, before the policy's. False = it was not finite and not taken."""
        assert isinstance(objective, ActorCritic) and batch.weight_NT is not None
        rows = (batch.weight_NT != 0).any(1).nonzero()[:, 0].tolist()
        inputs = [(tokens[i].group, tokens[i].prompt, tokens[i].completion) for i in rows]
        parts = [[rows[i] for i in part] for part in split(inputs, self.budget)]
        widths = [max(len(tokens[i].completion) for i in part) for part in parts]
        packed = [
            pack([(tokens[i].group, tokens[i].prompt, tokens[i].completion) for i in part], batch.mask_NT[part, :width])
            for part, width in zip(parts, widths, strict=True)
        ]
        fresh: Stats = {}

        def loss(values_NT: Tensor, i: int) -> Tensor:
            found = objective.value_loss(values_NT, narrow(batch.rows(parts[i]), widths[i]))
            merge(fresh, found.metrics)
            return found.value

        taken, norm = critic.learn(packed, loss) if packed else (True, 0.0)
        merge(stats, {**fresh, "value/grad_norm": Stat("max", norm)})
        return taken

    def _accumulate(self, objective: Objective, batch: Batch, tokens: list[Tokens], rows: list[int]) -> tuple[float, Stats]:
        """Gradients of the whole optimizer step."""
        return self._within_memory(lambda: self._backward(objective, batch, tokens, rows))

    def _within_memory(self, work: Callable[[], T]) -> T:
        """Out of memory drops all gradients of the step, halves the budget and does the whole work again."""
        while True:
            self.optimizer.zero_grad(set_to_none=True)
            try:
                return work()
            except (RuntimeError, MemoryError) as problem:
                if not out_of_memory(problem):
                    raise
                if self.ranks.world > 1:  # the others are inside a collective by now: nothing can be done again
                    given = f"rank {self.ranks.rank} ran out of memory at {self.budget} tokens a micro-batch"
                    raise Problem(given, "less than that", "training.micro_batch_tokens") from problem
                self._halve(problem)

    def _backward(self, objective: Objective, batch: Batch, tokens: list[Tokens], rows: list[int]) -> tuple[float, Stats]:
        total, stats = torch.zeros((), dtype=torch.float64), dict[str, Stat]()
        parts = self._mine(tokens, rows, objective.whole_groups)
        for k, (index, real) in enumerate(parts):
            micro = batch.rows(index)
            with nullcontext() if k == len(parts) - 1 else without_sync(self.module):
                outputs, width = self._forward(self.module, micro, [tokens[i] for i in index], entropy=True)
                loss = objective(outputs, narrow(micro, width))
                weight = self.ranks.scale if real else 0.0
                self.scaler.scale(loss.value if weight == 1 else loss.value * weight).backward()
            if real:
                total += loss.value.detach().cpu().double()
                merge(stats, loss.metrics)
        everyones: Stats = {}
        for fresh in self.ranks.gather(stats):
            merge(everyones, fresh)
        return float(self.ranks.total(total)), everyones

    def _forward(self, module: nn.Module, batch: Batch, tokens: Sequence[Tokens], *, entropy: bool) -> tuple[Outputs, int]:
        """Log-probs of the given rows; the returned width is the longest of them, never the whole batch's padding."""
        width = max((len(t.completion) for t in tokens), default=0)
        packed = pack([(t.group, t.prompt, t.completion) for t in tokens], batch.mask_NT[:, :width])
        return module(packed, self.temperature, entropy=entropy), width

    def _halve(self, problem: BaseException) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.budget <= 1:
            raise Problem("memory does not even hold one row's forward", "shorter completions or a smaller model") from problem
        self.budget //= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _refuse(self, loss: float, norm: float, tokens: list[Tokens], rows: list[int], progress: Progress) -> None:
        """Not finite: nothing of it reaches the weights; what led to it is dumped for whoever looks into it."""
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.update()
        self.bad_in_a_row += 1
        self.bad_total += 1
        dump = [{"prompt": list(tokens[i].prompt), "completion": list(tokens[i].completion)} for i in rows]
        self.on_bad({"step": progress.step, "update": self.updates, "loss": loss, "grad_norm": norm, "rows": dump})

    def _lr(self, progress: Progress) -> float:
        return self.lr * self.factors.get("lr", 1.0) * lr_factor(self.settings, self.updates, progress.updates)

    # --- weights and state --------------------------------------------------------------------------------------------------

    def weights(self, version: str) -> Weights:
        """The policy as it is now, for an engine to take over."""
        kind, tensors, scaling, base = self.policy.weights_tensors()
        return Weights(version=version, kind=kind, tensors=tensors, base_digest=base, digest=digest(tensors), scaling=scaling)

    def files(self) -> dict[str, bytes]:
        """Everything this trainer needs to go on bit for bit: policy, optimizer, counters, controllers, random state."""
        state = {
            "updates": self.updates,
            "budget": self.budget,
            "bad": [self.bad_in_a_row, self.bad_total, self.skipped_in_a_row],
            "controllers": {name: c.state() for name, c in self.controllers.items()},
            "factors": self.factors,
            "scaler": self.scaler.state_dict(),
            "torch_rng": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
        }
        moments = {
            f"{key}/{name}": whole(value).cpu()
            for name, p in zip(self.names, self.parameters, strict=True)
            for key, value in self.optimizer.state.get(p, {}).items()
        }
        policy = {f"policy/{name}": data for name, data in self.policy.files().items()}
        critic = {} if self.critic is None else {f"{CRITIC}{name}": data for name, data in self.critic.files().items()}
        own = {"optimizer/state.safetensors": save_tensors(moments), "trainer.json": json.dumps(state).encode()}
        return {**policy, **critic, **own}

    def load(self, files: Mapping[str, bytes]) -> None:
        """The inverse of `files`."""
        self.policy.load_files({n.removeprefix("policy/"): d for n, d in files.items() if n.startswith("policy/")})
        if self.critic is not None:
            self.critic.load({n.removeprefix(CRITIC): d for n, d in files.items() if n.startswith(CRITIC)})
        by_name = dict(zip(self.names, self.parameters, strict=True))
        self.optimizer.state.clear()
        for key, value in load_tensors(files["optimizer/state.safetensors"]).items():
            kind, name = key.split("/", 1)
            self.optimizer.state[by_name[name]][kind] = laid_out(by_name[name], value) if kind != "step" else value
        state = json.loads(files["trainer.json"])
        self.updates, self.budget = state["updates"], state["budget"]
        self.bad_in_a_row, self.bad_total, self.skipped_in_a_row = state["bad"]
        self.factors = dict(state.get("factors", {}))
        for name, controller in self.controllers.items():
            if name in state["controllers"]:  # a controller that the config got since starts afresh
                controller.load(state["controllers"][name])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["torch_rng"])), dtype=torch.uint8))


def merge(stats: Stats, fresh: Mapping[str, Stat]) -> None:
    """Add figures to those of other rows."""
    for name, stat in fresh.items():
        stats[name] = stats[name].merge(stat) if name in stats else stat


def minibatches(group_N: Sequence[int], parts: int, seed: str) -> Iterator[list[int]]:
    """Row indices of each optimizer step: whole groups, shuffled only where there is more than one step."""
    groups = sorted(set(group_N))
    if parts > 1:
        random.Random(seed).shuffle(groups)
    parts = min(parts, max(1, len(groups)))
    for k in range(parts):
        chosen = set(groups[k * len(groups) // parts : (k + 1) * len(groups) // parts])
        yield [n for n, g in enumerate(group_N) if g in chosen]


def lr_factor(settings: TrainingSettings, update: int, updates: int) -> float:
    """Warm-up to 1 over `warmup_steps` updates, then the schedule down to 0 at the planned last update."""
    warm = min(1.0, (update + 1) / (settings.warmup_steps + 1))
    gone = max(0.0, update - settings.warmup_steps) / max(1, updates - settings.warmup_steps)
    decay = {"constant": 1.0, "linear": 1.0 - gone, "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, gone)))}
    return warm * max(0.0, decay[settings.lr_schedule])


def narrow(batch: Batch, width: int) -> Batch:
    """The first `width` token columns: what is beyond is padding for every row."""
    cut = {
        f: (x[:, :width] if isinstance(x := getattr(batch, f), Tensor) and x.dim() == 2 else x)
        for f in Batch.__dataclass_fields__
    }
    return Batch(**cut)


def out_of_memory(problem: BaseException) -> bool:
    """CUDA has a class for it; the CPU allocator only a sentence."""
    return isinstance(problem, (torch.cuda.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(problem)


def _row_means(batch: Batch) -> list[float]:
    if batch.advantages_NT is None:
        return [0.0] * len(batch)
    sums = torch.where(batch.mask_NT, batch.advantages_NT, 0.0).sum(1)
    return (sums / batch.mask_NT.sum(1).clamp_min(1)).tolist()
