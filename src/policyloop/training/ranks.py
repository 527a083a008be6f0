"""Ranks: the processes of one run, and the few things they must agree on. One process is the same object with a world of 1.

Every rank knows every group of a step, so advantages and weights are computed alike everywhere from the whole step; only forwards and
backwards are split. DDP and FSDP2 average gradients over ranks, so `scale` (= the world's size) turns their mean into our sum.

Example:
    >>> with joined(DistSettings(strategy="fsdp2"), "cpu") as ranks:   # under torchrun; else ranks.world == 1
    ...     module = ranks.wrap(policy)
    ...     ranks.gather(ranks.rank)
    [0, 1]
"""

from __future__ import annotations

import atexit
import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree

from policyloop.engine import Engine, Request
from policyloop.errors import BadInput, Unavailable
from policyloop.models.policy import PolicyModel
from policyloop.rollout.source import GroupScorer
from policyloop.training import DistSettings
from policyloop.types import Completion, Group, Outputs

T = TypeVar("T")


@dataclass(slots=True)
class Ranks:
    """`rank` of `world` processes. `leader` (rank 0) alone writes the run folder and talks to people."""

    rank: int = 0
    world: int = 1
    strategy: Literal["ddp", "fsdp2"] = "ddp"
    device: str = "cpu"

    @property
    def leader(self) -> bool:
        return self.rank == 0

    @property
    def scale(self) -> float:
        return float(self.world)

    # --- agreeing -----------------------------------------------------------------------------------------------------------

    def gather(self, mine: T) -> list[T]:
        """What every rank gives, in rank order, on every rank."""
        if self.world == 1:
            return [mine]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine)
        return found

    def led(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on every rank; the others do not make it."""
        if self.world == 1:
            return make()
        box = [make() if self.leader else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]  # type: ignore[return-value]

    def most(self, number: int) -> int:
        return max(self.gather(number))

    def total(self, x: Tensor) -> Tensor:
        """The sum over ranks of a tensor in this machine's memory (in place)."""
        if self.world > 1:
            dist.all_reduce(x)
        return x

    def meet(self) -> None:
        """Wait until every rank is here."""
        self.gather(None)

    # --- splitting ----------------------------------------------------------------------------------------------------------

    def share(self, sizes: Sequence[int]) -> range:
        """This rank's run of units, cut so that every rank has about the same size."""
        total, before, mine = sum(sizes), 0, []
        for n, size in enumerate(sizes):
            if min(self.world - 1, int(self.world * (before + size / 2) / max(total, 1))) == self.rank:
                mine.append(n)
            before += size
        return range(mine[0], mine[-1] + 1) if mine else range(0)

    # --- the model ----------------------------------------------------------------------------------------------------------

    def wrap(self, policy: PolicyModel) -> nn.Module:
        """What forwards with gradients go through. FSDP2 changes the policy itself; its parameters are DTensors afterwards."""
        if self.world == 1:
            return policy
        if self.strategy == "ddp":
            return nn.parallel.DistributedDataParallel(policy, forward_sync_buffers=False)
        return shard(policy, self.world, self.device)


def shard(policy: PolicyModel, world: int, device: str) -> PolicyModel:
    """`fully_shard` on every block and on the whole: accelerate on CPU would silently make DDP of it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if Outputs not in _pytree.SUPPORTED_NODES:  # so that FSDP2 finds the tensors whose backward it must prepare
        _pytree.register_dataclass(Outputs)
    mesh = init_device_mesh(device.partition(":")[0], (world,))
    blocks = set(policy.causal._no_split_modules or ())
    for module in list(policy.causal.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, mesh=mesh)
    fully_shard(policy, mesh=mesh, reshard_after_forward=True)
    return policy


def without_sync(module: nn.Module) -> AbstractContextManager[Any]:
    """DDP sends gradients once, after the last micro-batch; FSDP2 after each, so that no rank ever holds a whole gradient."""
    return module.no_sync() if isinstance(module, nn.parallel.DistributedDataParallel) else nullcontext()


# --- joining ----------------------------------------------------------------------------------------------------------------


@contextmanager
def joined(settings: DistSettings, device: str) -> Iterator[Ranks]:
    """The ranks that torchrun's environment names (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR); alone without it.

    Errors: BadInput (no such backend here), Unavailable when another rank ended or did not answer in time.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks(strategy=settings.strategy)
        return
    rank = int(os.environ["RANK"])
    cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    backend = settings.backend if settings.backend != "auto" else ("cpu:gloo,cuda:nccl" if cuda else "gloo")
    limit = dt.timedelta(seconds=settings.timeout_s)
    try:
        os.environ.setdefault("MASTER_PORT", str(settings.master_port))
        if not dist.is_initialized():  # several runs of one process (--seeds) share it: a second one would race for the same port
            dist.init_process_group(backend, timeout=limit)
            atexit.register(dist.destroy_process_group)
    except (RuntimeError, ValueError) as problem:
        given = f"rank {rank} of {world} cannot join: {str(problem).splitlines()[0]}"
        raise BadInput(given, "gloo on CPUs, nccl on GPUs", "training.dist") from problem
    ranks = Ranks(rank, world, settings.strategy, "cuda" if cuda else "cpu")
    try:
        yield ranks
    except RuntimeError as problem:
        if not of_ranks(problem):
            raise
        raise Unavailable(
            f"rank {rank} of {world}: another rank ended or did not answer within {settings.timeout_s:g} s "
            f"({str(problem).strip().splitlines()[0][:200]})",
            "the first rank that failed says why; --resume auto goes on from the last checkpoint",
            "training.dist.timeout_s",
        ) from problem


def of_ranks(problem: BaseException) -> bool:
    """Whether a collective failed: torch has classes for some of these and only sentences for the others."""
    words = ("gloo", "connection closed by peer", "connection reset", "nccl", "timed out waiting", "timeout")
    return isinstance(problem, dist.DistError) or any(w in str(problem).lower() for w in words)


# --- sampling and scoring -----------------------------------------------------------------------------------------------------


class SharedEngine:
    """An engine per rank: each answers its share of the requests, all get all answers in request order. Random numbers depend on
    seed, uid, sample and position only, so the world's size changes nothing."""

    def __init__(self, engine: Engine, ranks: Ranks) -> None:
        self._engine, self._ranks = engine, ranks

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        mine = self._ranks.share([r.params.n for r in requests])
        made = self._engine.run([requests[i] for i in mine]) if mine else []
        return [c for part in self._ranks.gather(made) for c in part]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class LedScorer:
    """Rank 0 scores for all: a judge is asked once, and rewards are the same numbers everywhere."""

    def __init__(self, scorer: GroupScorer, ranks: Ranks) -> None:
        self._scorer, self._ranks = scorer, ranks

    def score(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        return self._ranks.led(lambda: self._scorer.score(groups))

    def problems(self) -> list[str]:
        return self._ranks.led(self._scorer.problems)

    def state(self) -> dict[str, Any]:
        return self._scorer.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._scorer.load(state)
