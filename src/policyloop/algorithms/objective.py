"""The seam every algorithm satisfies; the trainer knows nothing else of it.

at -> mark -> (old, reference log-probs if needed) -> prepare -> per optimizer step: weigh -> active -> __call__ per micro-batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from policyloop.algorithms.loss import Loss, Metrics
from policyloop.types import Batch, Group, Outputs, Progress

AllSum = Callable[[Tensor], Tensor]


def alone(x: Tensor) -> Tensor:
    """The sum over ranks when there is one."""
    return x


class Objective(Protocol):
    """A value made of parts. Every method is pure."""

    @property
    def group_size(self) -> int: ...

    @property
    def updates_per_rollout(self) -> int: ...

    @property
    def supervised(self) -> bool:
        """Imitates given text: nothing is sampled for it."""
        ...

    @property
    def whole_groups(self) -> bool:
        """Rows of a group must meet in one micro-batch (pairs)."""
        ...

    @property
    def head(self) -> Literal["tokens", "scalar"]:
        """What the model is asked for: log-probs of tokens, or one number per completion (a reward model)."""
        ...

    @property
    def needs_reference(self) -> bool: ...

    @property
    def needs_critic(self) -> bool: ...

    def needs_old(self, updates: int) -> bool: ...

    def at(self, progress: Progress, controllers: Mapping[str, float] = {}) -> Objective:
        """Schedules and controllers as plain numbers."""
        ...

    def mark(self, groups: Sequence[Group]) -> list[Group]:
        """The filter's `keep` marks; nothing is dropped."""
        ...

    def prepare(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        """Advantages (and returns) of the whole rollout."""
        ...

    def weigh(self, batch: Batch, all_sum: AllSum = alone) -> Batch:
        """counted_NT and weight_NT of one optimizer step, before it is split."""
        ...

    def active(self, batch: Batch) -> Tensor:
        """(N,) bool: rows on which any term is not 0."""
        ...

    def __call__(self, outputs: Outputs, batch: Batch) -> Loss: ...

    def describe(self, batch: Batch) -> Metrics:
        """Figures of the whole rollout that the loss does not see."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """An objective that may go over one rollout several times and stop once the policy has moved far enough."""

    @property
    def epochs_per_rollout(self) -> int: ...

    @property
    def target_kl(self) -> float | None: ...


@runtime_checkable
class ActorCritic(Protocol):
    """An objective with a critic of its own: what `needs_critic` promises."""

    def value_loss(self, values_NT: Tensor, batch: Batch) -> Loss: ...
