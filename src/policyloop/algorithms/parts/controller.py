"""Controllers: numbers that learn from what happened. Parts hold no state; a part that wants some makes a controller, the trainer keeps it.

meet(groups) -> value (takes the place of the part's field for one update) -> observe(metrics) after it; state and load go with the checkpoint.

Example:
    >>> kl = AdaptiveKL(0.2, target=6.0, horizon=10_000, unit="per_sequence")
    >>> kl.observe({"kl_ref/per_sequence": 3.0, "groups/count": 64.0, "groups/size_mean": 1.0})
    >>> kl.value                       # 0.2 · (1 - 0.2 · 64 / 10000)
    0.199744
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from policyloop.types import Group


class Controller(Protocol):
    """What learns. Its key is the path of the field it stands for (`kl.coef`, `filter.difficulty`)."""

    @property
    def value(self) -> Any: ...

    def meet(self, groups: Sequence[Group]) -> None:
        """One rollout's scored groups, before anything is derived from them."""
        ...

    def observe(self, metrics: Mapping[str, float]) -> None:
        """The metrics of the update that used `value`."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class AdaptiveKL:
    """value *= 1 + clip(KL / target - 1, -0.2, 0.2) · completions / horizon (Ziegler et al. 2019). The unit is the target's: nats per
    completion (summed) or per token (mean)."""

    value: float
    target: float
    horizon: int
    unit: Literal["per_sequence", "per_token"]

    def meet(self, groups: Sequence[Group]) -> None:
        """Reads metrics only."""

    def observe(self, metrics: Mapping[str, float]) -> None:
        found = metrics.get(f"kl_ref/{self.unit}")
        if found is None:
            return
        completions = metrics.get("groups/count", 0.0) * metrics.get("groups/size_mean", 1.0)
        error = min(0.2, max(-0.2, found / self.target - 1))
        self.value *= 1 + error * completions / self.horizon

    def metrics(self) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"value": self.value}

    def load(self, state: Mapping[str, Any]) -> None:
        self.value = float(state["value"])


def controllers_of(part: Any, where: str = "") -> dict[str, Controller]:
    """Every controller that a part or a part of it asks for, by path."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return {}
    made = getattr(part, "controllers", dict)
    found: dict[str, Controller] = {f"{where}{name}": each for name, each in made().items()}
    for field in dataclasses.fields(part):
        found |= controllers_of(getattr(part, field.name), f"{where}{field.name}.")
    return found


def moved(before: Any, now: Any, where: str = "") -> dict[str, float]:
    """Path -> number wherever a schedule or a controller put one."""
    if not dataclasses.is_dataclass(before) or isinstance(before, type) or before is now:
        return {}
    found: dict[str, float] = {}
    for field in dataclasses.fields(before):
        old, new, path = getattr(before, field.name), getattr(now, field.name, None), f"{where}{field.name}"
        if isinstance(new, (int, float)) and not isinstance(new, bool) and old != new:
            found[path] = float(new)
        elif dataclasses.is_dataclass(new):
            found |= moved(old, new, f"{path}.")
    return found
