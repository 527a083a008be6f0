"""Evaluation: is it better, and how sure are we. This file holds the settings (no torch).

Example: `EvaluationSettings(every=10, prompts=200, samples=4, temperature=0.6, metric="pass_at_4")` measures four sampled answers to each of
200 held-out prompts every ten steps, and keeps the checkpoint that solves most of them in four tries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from policyloop.errors import BadInput
from policyloop.types import settings

FIGURES = ("accuracy", "accuracy_low", "length_mean", "length_p50", "length_p95", "truncated_frac", "tokens_per_correct")


@settings
class GateSettings:
    """What a candidate must show against the stable version before it may be promoted (docs/gate.md). null = not asked.

    require: `better` (more often right, or as often and shorter) or `not_worse` (by more than the margin). margin: how much less accuracy
    still counts as not worse. min_items: independent items below which nothing ships. min_accuracy: the candidate's accuracy must reach this.
    max_length_ratio, max_latency_ratio, max_cost_ratio: candidate over stable. token_price_in, token_price_out: of one prompt and one
    sampled token, for the cost. max_kl: KL(stable || candidate) in nats per token. max_format_errors: share of the candidate's answers
    that are cut off, empty or cannot be judged.
    regressions: name -> suite file that must not become worse by more than regression_margin.
    contaminated: what to do about items that are also training rows: refuse, or drop them and judge on the rest. near: similarity from
    which a reworded copy (same numbers, same answer) counts as one.
    judge_labels: file of {judge, human} labels, where a judge grades; judge_agreement: the least Cohen's kappa (its lower bound).
    """

    require: Literal["better", "not_worse"] = "better"
    margin: float = 0.05
    min_items: int = 100
    min_accuracy: float | None = None
    max_length_ratio: float | None = 1.5
    max_latency_ratio: float | None = None
    max_cost_ratio: float | None = None
    token_price_in: float = 1.0
    token_price_out: float = 4.0
    max_kl: float | None = None
    max_format_errors: float | None = 0.1
    regressions: Mapping[str, str] = field(default_factory=dict)
    regression_margin: float = 0.02
    contaminated: Literal["refuse", "drop"] = "refuse"
    near: float = 0.7
    judge_labels: str | None = None
    judge_agreement: float = 0.6

    def __post_init__(self) -> None:
        for name in ("margin", "regression_margin", "min_accuracy", "max_format_errors", "near", "judge_agreement"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise BadInput(f"evaluation.gate.{name} = {value}", "0 to 1", f"evaluation.gate.{name}")
        for name in ("max_length_ratio", "max_latency_ratio", "max_cost_ratio", "max_kl", "token_price_in", "token_price_out"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise BadInput(f"evaluation.gate.{name} = {value}", "0 or more", f"evaluation.gate.{name}")
        if self.min_items < 1:
            raise BadInput(f"evaluation.gate.min_items = {self.min_items}", "1 or more", "evaluation.gate.min_items")


@settings
class EvaluationSettings:
    """Held-out evaluation during training and by the verbs.

    every: steps between evaluations during training, 0 = none. prompts: how many held-out prompts.
    metric, better: the figure that alone decides "best" (retention, early stop, `run://NAME@best`): accuracy, accuracy_low, length_mean,
    length_p50, length_p95, truncated_frac, tokens_per_correct, or pass_at_K where samples allow it.
    target: value of the metric at which a run ends as done (needs every); null = none.
    max_new_tokens: null = rollout.max_new_tokens. temperature: 0 = greedy. samples: answers per prompt (pass@k when above 1).
    seed: of held-out texts and of sampling. gate: what `policyloop gate` asks of a candidate.
    """

    every: int = 0
    prompts: int = 96
    metric: str = "accuracy"
    better: Literal["higher", "lower"] = "higher"
    target: float | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    samples: int = 1
    seed: int = 1
    gate: GateSettings = GateSettings()

    def __post_init__(self) -> None:
        self._need(self.every >= 0, "every", "0 (none) or more")
        self._need(self.prompts > 0, "prompts", "1 or more")
        self._need(self.samples > 0, "samples", "1 or more")
        self._need(self.max_new_tokens is None or self.max_new_tokens > 0, "max_new_tokens", "1 or more, or null")
        self._need(self.temperature >= 0, "temperature", "0 (greedy) or more")
        tries = re.fullmatch(r"pass_at_(\d+)", self.metric)
        known = tries is None or int(tries[1]) in tries_of(self.samples)
        allowed = ", ".join([*FIGURES, *(f"pass_at_{k}" for k in tries_of(self.samples))])
        self._need(
            known and (tries is not None or self.metric in FIGURES), "metric", f"{allowed} (with samples = {self.samples})"
        )
        if self.samples > 1 and self.temperature == 0:
            raise BadInput(
                f"evaluation.samples = {self.samples} greedy answers are {self.samples} times the same answer",
                "a temperature above 0, or samples: 1",
                "evaluation.temperature",
            )

    def _need(self, ok: bool, field: str, allowed: str) -> None:
        if not ok:
            raise BadInput(f"evaluation.{field} = {getattr(self, field)}", allowed, f"evaluation.{field}")


def tries_of(samples: int) -> list[int]:
    """The k of pass@k that are reported: powers of two up to the number of samples, and that number."""
    return sorted({k for k in (2**i for i in range(1, 11)) if k <= samples} | {samples}) if samples > 1 else []
