"""Guards: a metric, a limit, how bad it is, what to do, what it means and which key to change. One table, read by the run, the report,
`policyloop doctor`, the docs and the alerts.

In: one step's metrics (`health/*` of `monitor.health` among them) and thresholds by name (`training.health`). Out: the guards whose
metric is beyond its limit. A metric that is absent is no finding; a limit that is null switches its guard off.

Example:
    >>> [g.name for g in beyond({"grad_norm": 2.0, "reward/mean": 0.1}, thresholds)]
    ['grad_norm_alarm', 'grad_norm_warn']
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["warn", "alarm"]
Action = Literal["warn", "lower_lr", "raise_kl", "shrink_clip", "stop", "restore"]

# what an action multiplies, by path: `lr`, or a number of the algorithm; `stop` and `restore` end the run instead
FACTORS: dict[Action, Mapping[str, float]] = {
    "lower_lr": {"lr": 0.5},
    "raise_kl": {"kl.coef": 1.5},
    "shrink_clip": {"surrogate.low": 0.8, "surrogate.high": 0.8},
}
LEAST, MOST = 1 / 16, 16.0  # no action takes a factor beyond these


@dataclass(frozen=True, slots=True)
class Guard:
    """`metric` beyond `limit`, `after` steps that report it in a row, is spoken of; `patience` more in a row, and `action` is taken
    (again every `patience` + 1). `only`: a metric that a step must have as well, so that the guard judges what it is meant for."""

    metric: str
    beyond: Literal["above", "below"]
    limit: float
    severity: Severity
    means: str
    change: str
    after: int = 1
    action: Action = "warn"
    patience: int = 0
    only: str = ""

    @property
    def advice(self) -> str:
        return f"{self.means}; {self.change}"

    def fires(self, value: float, limit: float) -> bool:
        return value > limit if self.beyond == "above" else value < limit


@dataclass(frozen=True, slots=True)
class Finding:
    """A guard beyond its limit at one step; `action` is what was asked for and due."""

    guard: str
    metric: str
    value: float
    limit: float
    severity: Severity
    action: Action
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.metric} is {self.value:.3g}, the limit is {self.limit:.3g}: {self.advice}"


ROLLOUT = "reward/mean"  # supervised training starts far away with large, clipped gradients: absolute norms are judged in RL only

GUARDS: dict[str, Guard] = {
    # the update
    "non_finite": Guard(
        "update/nan",
        "above",
        0.0,
        "alarm",
        "loss or gradient was not finite, the update was refused",
        "lower training.lr, set rewards.range_control, look at bad/ in the run folder",
    ),
    "update_success_warn": Guard(
        "health/update_success",
        "below",
        0.999,
        "warn",
        "updates are being refused",
        "lower training.lr, keep training.max_grad_norm at 1.0, training.precision: fp32 or bf16",
    ),
    "grad_norm_alarm": Guard(
        "grad_norm",
        "above",
        1.5,
        "alarm",
        "the update is unstable",
        "lower training.lr",
        after=3,
        only=ROLLOUT,
    ),
    "grad_norm_warn": Guard(
        "grad_norm",
        "above",
        1.0,
        "warn",
        "the gradient is clipped at training.max_grad_norm step after step",
        "watch the held-out curve, lower training.lr if it falls",
        after=3,
        only=ROLLOUT,
    ),
    "grad_norm_spike": Guard(
        "health/grad_norm_spike",
        "above",
        10.0,
        "alarm",
        "the gradient is many times its own median",
        "lower training.lr or lengthen training.warmup_steps, and read the samples of this step",
    ),
    "kl_alarm": Guard(
        "approx_kl/k3",
        "above",
        0.02,
        "alarm",
        "one rollout's updates move the policy too far",
        "lower training.lr or rl_strategy.updates_per_rollout",
    ),
    "ref_kl_warn": Guard(
        "kl_ref/k3",
        "above",
        0.5,
        "warn",
        "the policy is far from the reference",
        "raise rl_strategy.kl.coef or lower training.lr",
        after=3,
    ),
    "clip_warn": Guard(
        "health/clip_share",
        "above",
        0.3,
        "warn",
        "much of the signal is clipped away",
        "lower training.lr or rl_strategy.updates_per_rollout",
        after=3,
    ),
    "mismatch_alarm": Guard(
        "mismatch/abs_logp_diff_mean",
        "above",
        0.05,
        "alarm",
        "engine and trainer disagree on the probabilities of the same tokens",
        "set rollout.dtype to the trainer's, or rl_strategy.correction: {token_truncate: {}}",
        after=3,
    ),
    "mismatch_kl_alarm": Guard(
        "mismatch/k3",
        "above",
        0.01,
        "alarm",
        "the sampled distribution is not the policy that is updated",
        "keep rollout.top_p, top_k and min_p off, set rl_strategy.correction: {token_truncate: {}}",
        after=3,
    ),
    "value_error_warn": Guard(
        "value/error",
        "above",
        0.25,
        "warn",
        "the critic is further off than a constant would be for rewards of 0 and 1",
        "raise model.critic.lr or model.critic.warmup_steps, scale rewards to [-1, 1] with rewards.range_control",
        after=5,
    ),
    "explained_variance_warn": Guard(
        "value/explained_variance",
        "below",
        0.0,
        "warn",
        "the critic predicts worse than the mean return, so advantages are noise",
        "raise model.critic.warmup_steps or model.critic.lr, or use an algorithm without a critic",
        after=5,
    ),
    # exploration
    "entropy_low": Guard(
        "entropy",
        "below",
        0.02,
        "warn",
        "the policy hardly explores",
        "raise rollout.temperature, lower training.lr, or set rl_strategy.entropy: {coef: 0.001}",
        after=3,
        only=ROLLOUT,
    ),
    "entropy_high": Guard(
        "entropy",
        "above",
        5.0,
        "warn",
        "the policy is close to noise",
        "lower rollout.temperature or training.lr, and rl_strategy.entropy: null",
        after=3,
        only=ROLLOUT,
    ),
    "entropy_fall": Guard(
        "health/entropy_ratio",
        "below",
        0.2,
        "warn",
        "entropy has fallen to a fraction of where it began: answers become alike",
        "lower training.lr, raise rl_strategy.surrogate.clip.high or rl_strategy.kl.coef",
        after=3,
    ),
    # signal
    "zero_std_warn": Guard(
        "groups/zero_std_frac",
        "above",
        0.8,
        "warn",
        "most groups have equal rewards and teach nothing",
        "take other prompts, a larger rl_strategy.group_size, or rl_strategy.filter: {drop_constant: {}} (dynamic sampling)",
        after=3,
    ),
    "all_wrong_warn": Guard(
        "groups/all_wrong_frac",
        "above",
        0.9,
        "warn",
        "hardly any group has a right answer",
        "easier prompts or a supervised start; `policyloop reward try` shows whether right answers are counted as right",
        after=3,
    ),
    "all_correct_warn": Guard(
        "groups/all_correct_frac",
        "above",
        0.9,
        "warn",
        "the prompts are too easy by now",
        "harder prompts in data, or stop here",
        after=3,
    ),
    "retained_zero_std_alarm": Guard(
        "gfpo/retained_zero_std_frac",
        "above",
        0.5,
        "alarm",
        "the filter keeps equal rewards, and with baseline retained they teach nothing",
        "rl_strategy.advantage.group.baseline: group, or rl_strategy.filter.top_k.metric: shortest",
        after=3,
    ),
    # answers
    "truncated_warn": Guard(
        "length/truncated_frac",
        "above",
        0.5,
        "warn",
        "most answers are cut off",
        "raise rollout.max_new_tokens",
    ),
    "length_growth_warn": Guard(
        "health/length_ratio",
        "above",
        2.0,
        "warn",
        "answers have become much longer than at the start",
        "rewards.token_efficiency, or rl_strategy.filter: {top_k: {metric: shortest}}",
        after=3,
    ),
    "length_collapse_warn": Guard(
        "health/length_ratio",
        "below",
        0.33,
        "warn",
        "answers have become much shorter than at the start: look whether they still reason or only guess",
        "lower the weight of length terms in rewards, keep token_efficiency.only_if_correct: true",
        after=3,
    ),
    # rewards
    "unscored_warn": Guard(
        "health/unscored_share",
        "above",
        0.2,
        "warn",
        "many completions got no reward (it failed or ran out of time)",
        "see reward/failed/* and reward/late/*, raise the reward's timeout_s",
    ),
    "range_warn": Guard(
        "reward/out_of_range_frac",
        "above",
        0.1,
        "warn",
        "rewards leave the range they should have",
        "rescale the reward, or another rewards.range_control.mode",
        after=3,
    ),
    "dominance_warn": Guard(
        "health/reward_dominance",
        "above",
        0.95,
        "warn",
        "one reward alone decides, the others have no say",
        "raise the other weights in rewards.terms, or rewards.combine: normalize_then_sum",
        after=3,
    ),
    "length_reward_warn": Guard(
        "health/length_reward",
        "above",
        0.9,
        "warn",
        "the reward measures little but length",
        "a reward of the outcome in rewards.terms, length only on right answers",
        after=3,
    ),
    "reward_drift_warn": Guard(
        "health/reward_drift",
        "above",
        2.0,
        "warn",
        "the reward rises and the raw outcome does not: it is being gamed, or its scale drifts",
        "read the samples of high reward, raise rl_strategy.kl.coef, rewards.range_control: {mode: running_z}",
        after=3,
    ),
    # held-out
    "accuracy_below_start": Guard(
        "health/below_start",
        "above",
        0.0,
        "alarm",
        "held-out results are below the untouched model by more than its interval",
        "lower training.lr, check that reward and held-out metric want the same",
        action="restore",
        patience=1,
    ),
    "accuracy_falling": Guard(
        "health/falls_in_row",
        "above",
        2.0,
        "alarm",
        "held-out results fall evaluation after evaluation",
        "lower training.lr or training.steps; training.early_stop ends a run at its best",
        action="restore",
        patience=1,
    ),
}


def limit_of(name: str) -> float:
    """The default threshold of a guard, for the settings class."""
    return GUARDS[name].limit


def beyond(metrics: Mapping[str, Any], thresholds: Any) -> Iterator[tuple[str, Guard, float, float]]:
    """(name, guard, value, limit) of every guard whose metric is beyond its limit at this step."""
    for name, guard, value, limit in judged(metrics, thresholds):
        if guard.fires(value, limit):
            yield name, guard, value, limit


def judged(metrics: Mapping[str, Any], thresholds: Any) -> Iterator[tuple[str, Guard, float, float]]:
    """(name, guard, value, limit) of every guard that has something to say about this step."""
    for name, guard in GUARDS.items():
        value, limit = metrics.get(guard.metric), getattr(thresholds, name)
        if limit is None or not isinstance(value, int | float) or math.isnan(value):
            continue
        if not guard.only or guard.only in metrics:
            yield name, guard, float(value), float(limit)
