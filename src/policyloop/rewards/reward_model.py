"""A trained reward model, or several, as a reward.

Example: two models that say 1.0 and 0.0 of an answer: mean 0.5, worst 0.0, uncertainty (c = 1) 0.5 - 0.5 = 0.0.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from policyloop.rewards import Row
from policyloop.rewards.running import in_thread

if TYPE_CHECKING:
    from policyloop.models.reward import RewardModel

Ensemble = Literal["mean", "worst", "uncertainty"]


class RewardModelReward:
    """Models are opened at once: a wrong path is an error before the run. With `normalise`, scores are in units of the model's own spread
    on its held-out pairs, around its mean there: only so can several models be compared, and only so has a limit a meaning."""

    def __init__(
        self, name: str, paths: Sequence[str], ensemble: Ensemble, uncertainty: float, normalise: bool, device: str
    ) -> None:
        from policyloop.models.reward import open_reward_model

        self.name, self.uncertainty, self.normalise = name, uncertainty, normalise
        self.ensemble: Ensemble = ensemble
        self.models = [open_reward_model(path, device) for path in paths]
        self._lock = threading.Lock()  # a model runs one batch at a time

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return list(await in_thread(lambda: self.scores(rows)))

    def scores(self, rows: Sequence[Row]) -> list[float]:
        prompts, answers = [r.prompt for r in rows], [r.completion.text for r in rows]
        whole = [r.completion.finish_reason == "stop" for r in rows]
        with self._lock:
            found = [self._scaled(m, m.scores(prompts, answers, whole)) for m in self.models]
        votes = zip(*found, strict=True)
        return [together(v, self.ensemble, self.uncertainty) for v in votes]

    def _scaled(self, model: RewardModel, scores: Sequence[float]) -> list[float]:
        mean, std = float(model.about.get("mean", 0.0)), float(model.about.get("std", 1.0)) or 1.0
        return [(s - mean) / std for s in scores] if self.normalise else list(scores)


def together(votes: Sequence[float], ensemble: Ensemble, uncertainty: float) -> float:
    """One number from several: their mean, the least of them, or the mean minus `uncertainty` standard deviations."""
    if ensemble == "worst":
        return min(votes)
    mean = statistics.fmean(votes)
    return mean - uncertainty * statistics.pstdev(votes) if ensemble == "uncertainty" else mean
