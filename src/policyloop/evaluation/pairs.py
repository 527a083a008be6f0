"""Pairs, held out: does the model put the chosen answer before the rejected one, by how much, and does it know how sure it may be?

In: a score per side (implicit rewards of a policy, or a reward model's). Out: accuracy with its interval, margin, Kendall's tau-b against
the rows' own scores where they have some, and the calibration of sigmoid(margin).

Example:
    >>> PairEvaluation("run#20", ((1.2, 0.3), (0.1, 0.4))).sentence()
    'pairs 0.500 [0.094, 0.906], margin 0.300 (n = 2)'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from scipy.stats import kendalltau

from policyloop.algorithms import BradleyTerry, Preference
from policyloop.models.pack import pack, split
from policyloop.models.policy import PolicyModel
from policyloop.rollout.batch import to_batch
from policyloop.stats import correlation, wilson
from policyloop.training.sources import ConversationRenderer, demonstrated, pair_of
from policyloop.types import Prompt

BINS = 10


@dataclass(frozen=True, slots=True)
class PairEvaluation:
    """`scores`: (chosen, rejected) per pair; `given`: the rows' own scores, where every pair has them; `lengths`: tokens of both sides."""

    version: str
    scores: tuple[tuple[float, float], ...]
    given: tuple[tuple[float, float], ...] = ()
    lengths: tuple[tuple[int, int], ...] = ()
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def margins(self) -> list[float]:
        return [chosen - rejected for chosen, rejected in self.scores]

    @property
    def accuracy(self) -> float:
        """Equal scores are half right: a model that has no opinion is as good as a coin."""
        return sum((m > 0) + 0.5 * (m == 0) for m in self.margins) / max(1, len(self.scores))

    def metrics(self) -> dict[str, float]:
        if not self.scores:
            return {}
        n = len(self.scores)
        low, high = wilson(self.accuracy * n, n)
        flat = [s for pair in self.scores for s in pair]
        found = {
            "eval/accuracy": self.accuracy,
            "eval/accuracy_low": low,
            "eval/accuracy_high": high,
            "eval/n": float(n),
            "eval/length_mean": sum(sum(pair) for pair in self.lengths) / (2 * n),
            "eval/margin": sum(self.margins) / n,
            "eval/calibration_error": calibration_error(self.margins),
            **{f"eval/{name}": value for name, value in self.extra.items()},
        }
        if self.lengths:
            found["eval/length_corr"] = correlation(flat, [float(x) for pair in self.lengths for x in pair])
        if self.given:
            found["eval/kendall_tau_b"] = kendall_tau_b(flat, [s for pair in self.given for s in pair])
        return found

    def sentence(self) -> str:
        found = self.metrics()
        if not found:
            return "no held-out pairs"
        low, high = found["eval/accuracy_low"], found["eval/accuracy_high"]
        tau = f", tau-b {found['eval/kendall_tau_b']:.3f}" if "eval/kendall_tau_b" in found else ""
        return (
            f"pairs {self.accuracy:.3f} [{low:.3f}, {high:.3f}], margin {found['eval/margin']:.3f}{tau} (n = {len(self.scores)})"
        )


@torch.no_grad()
def evaluate_pairs(
    policy: PolicyModel,
    objective: Preference | BradleyTerry,
    renderer: ConversationRenderer,
    prompts: Sequence[Prompt],
    *,
    version: str,
    temperature: float = 1.0,
    budget: int = 4096,
) -> PairEvaluation:
    """What the objective makes of both sides of every pair, as the policy is now."""
    groups = [pair_of(p.id, p, lambda q, answer: demonstrated(q, answer, renderer)) for p in prompts]
    batch, tokens = to_batch(groups)
    scores: list[tuple[float, float]] = []
    for index in split([(t.group, t.prompt, t.completion) for t in tokens], budget, whole_groups=True):
        rows = [(tokens[i].group, tokens[i].prompt, tokens[i].completion) for i in index]
        micro = batch.rows(index)
        packed = pack(rows, micro.mask_NT)
        if objective.needs_reference:
            with policy.reference():
                micro.ref_logprobs_NT = policy(packed, temperature, entropy=False).logprobs_NT
        found = objective.sides(policy(packed, temperature, entropy=False), micro)
        scores += [(chosen, rejected) for chosen, rejected in found.tolist()]
    given = [(g.scores[0].value, g.scores[1].value) for g in groups]
    known = tuple((a, b) for a, b in given if a is not None and b is not None)
    sizes = tuple((g.completions[0].length, g.completions[1].length) for g in groups)
    return PairEvaluation(version, tuple(scores), known if len(known) == len(groups) else (), sizes)


def calibration_error(margins: Sequence[float], bins: int = BINS) -> float:
    """Expected calibration error: |sigmoid(|margin|) - share right| over equally wide bins of confidence in [0.5, 1], by size."""
    sure = [(1 / (1 + math.exp(-min(abs(m), 500.0))), (m > 0) + 0.5 * (m == 0)) for m in margins]
    total = 0.0
    for b in range(bins):
        low, high = 0.5 + 0.5 * b / bins, 0.5 + 0.5 * (b + 1) / bins
        inside = [(p, right) for p, right in sure if low <= p < high or (b == bins - 1 and p == 1.0)]
        total += abs(sum(p for p, _ in inside) - sum(right for _, right in inside))
    return total / max(1, len(sure))


def kendall_tau_b(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank agreement with ties, -1 to 1; NaN where one side is all equal."""
    return float(kendalltau(x, y, variant="b")[0])  # type: ignore[arg-type]
