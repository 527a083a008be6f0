"""Rewards: what a completion is worth. This file holds the protocol, the settings and the table (no torch).

In: rows of (prompt, completion). Out: one number per row; NaN = does not apply, None = could not be scored (counted, never 0).

Example (YAML):
    rewards:
      - correct: {weight: 1.0}
      - format: {pattern: think, weight: 0.2}
      - my_rewards.py:brevity: {weight: 0.1, timeout_s: 5}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol

from policyloop.types import Completion, Prompt, settings

Grade = Callable[[Prompt, Completion], bool | None]


class Row(NamedTuple):
    prompt: Prompt
    completion: Completion


@dataclass(frozen=True, slots=True)
class Context:
    """What a reward may need to know of its run: the task's verdict, the columns its prompts have, the token limit."""

    grade: Grade
    columns: frozenset[str] = frozenset()
    max_new_tokens: int = 256


class Reward(Protocol):
    """One reward, ready to run."""

    name: str

    async def __call__(self, rows: Sequence[Row]) -> Sequence[float | None]: ...


@settings
class Correct:
    """1 where the task's verifier says right, 0 where it says wrong; unscored where the gold cannot be judged."""

    weight: float = 1.0
    name: str = "correct"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.verifier import CorrectReward

        return CorrectReward(self.name, context.grade)


@settings
class Math:
    """Like `correct`, by the exact mathematical grader whatever the task's own verifier. needs_stop: cut-off answers are wrong."""

    weight: float = 1.0
    needs_stop: bool = False
    name: str = "math"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.verifier import MathReward

        return MathReward(self.name, self.needs_stop)


@settings
class Format:
    """1 where the text has the form: `think` (reasoning closed once, then an answer), `answer` (<answer>…</answer>), or a regular expression."""

    pattern: str = "think"
    weight: float = 0.2
    name: str = "format"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.form import FormatReward

        return FormatReward(self.name, self.pattern)


@settings
class Stop:
    """-1 on completions cut off by the token limit, 0 else. Added, not multiplied: a factor would raise negative rewards."""

    weight: float = 0.1
    name: str = "stop"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.form import StopReward

        return StopReward(self.name)


@settings
class Function:
    """A user's function: path `pkg.mod:name` or `file.py:name`. timeout_s: per call; late or failing rows are unscored and counted."""

    path: str
    weight: float = 1.0
    timeout_s: float = 30.0
    name: str = ""

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.function import load_function

        return load_function(self, context)


@settings
class Given:
    """A function object, for the Python API (`policyloop.train(reward=f)`); it has no YAML form."""

    function: Callable[..., object]
    weight: float = 1.0
    timeout_s: float = 30.0

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.function import FunctionReward

        return FunctionReward(getattr(self.function, "__name__", type(self.function).__name__), self.function, self.timeout_s, context)


REWARDS: dict[str, type] = {"correct": Correct, "math": Math, "format": Format, "stop": Stop, "function": Function}
Term = Correct | Math | Format | Stop | Function | Given


@settings
class TokenEfficiency:
    """Penalty for length beyond a share of the budget (ALGORITHMS §14.3): -weight · clip((len/budget - threshold)/(1 - threshold), 0, 1).

    length_ratio_threshold 1 disables. length_budget: tokens, null = rollout.max_new_tokens. only_if_correct: wrong answers are not
    touched, so that an all-wrong group gets no phantom signal. action: `drop` leaves such completions unscored instead.
    weight must stay below the gap between right and wrong, so that a long right answer still beats a short wrong one.
    """

    length_ratio_threshold: float = 0.7
    weight: float = 0.2
    length_budget: int | None = None
    only_if_correct: bool = True
    action: Literal["penalise", "drop"] = "penalise"


@settings
class RangeControl:
    """mode clip: into [low, high]; running_z: (R - mean) / std of all rewards so far, frozen during a step; tanh."""

    mode: Literal["clip", "running_z", "tanh"] = "clip"
    low: float = -1.0
    high: float = 1.0


@settings
class RewardsSettings:
    """terms: the rewards. combine: sum (Σ w·r), normalize_then_sum (z-score each inside the group first, GDPO), conditional (the first term
    must reach gate_threshold, else the row gets gate_fail). range_control: null = off. token_efficiency: null = off."""

    slots: ClassVar[Mapping[str, Mapping[str, type]]] = {"terms": REWARDS}
    import_paths: ClassVar[Mapping[str, str]] = {"terms": "function"}

    terms: tuple[Term, ...] = field(default_factory=lambda: (Correct(),))
    combine: Literal["sum", "normalize_then_sum", "conditional"] = "sum"
    gate_threshold: float = 0.5
    gate_fail: float = 0.0
    range_control: RangeControl | None = None
    token_efficiency: TokenEfficiency | None = None
