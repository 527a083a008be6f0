"""Rewards: what a completion is worth. This file holds the protocol, the settings and the table (no torch).

In: rows of (prompt, completion). Out: one number per row; NaN = does not apply, None = could not be scored (counted, never 0).

Example (YAML; a bare list under `rewards:` is `terms`):
    rewards:
      - correct: {weight: 1.0}
      - format: {pattern: think, weight: 0.2}
      - my_rewards.py:brevity: {weight: 0.1, timeout_s: 5}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

from policyloop.errors import BadInput
from policyloop.types import Completion, Prompt, settings

if TYPE_CHECKING:
    from policyloop.rewards.judge import Judge

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

    @property
    def name(self) -> str: ...

    async def __call__(self, rows: Sequence[Row]) -> Sequence[float | None]: ...


def need(ok: bool, given: str, allowed: str, where: str) -> None:
    if not ok:
        raise BadInput(given, allowed, where)


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
    """1 where the whole text has the form: `think` (reasoning closed once, then an answer), `answer` (ends in one <answer>…</answer>), or
    a regular expression. prefilled: the chat template opens <think> itself, so that one in the completion is a second one."""

    pattern: str = "think"
    prefilled: bool = False
    weight: float = 0.2
    name: str = "format"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.form import FormatReward

        return FormatReward(self.name, self.pattern, self.prefilled)


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
    """A user's function: path `pkg.mod:name` or `file.py:name`. timeout_s: per call; late or failing rows are unscored and counted.

    concurrency: calls at once of a function that takes one completion. isolated: calls run in a process that is killed when late.
    """

    path: str
    weight: float = 1.0
    timeout_s: float = 30.0
    concurrency: int = 16
    isolated: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        need(self.timeout_s > 0, f"timeout_s = {self.timeout_s}", "seconds above 0", f"rewards.{self.path}.timeout_s")
        need(self.concurrency > 0, f"concurrency = {self.concurrency}", "1 or more", f"rewards.{self.path}.concurrency")

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.function import FunctionReward, load_function
        from policyloop.rewards.isolated import Isolated

        name = self.name or self.path.rpartition(":")[2]
        isolated = Isolated(self.path, self.timeout_s) if self.isolated else None
        return FunctionReward(name, load_function(self.path), context, self.timeout_s, self.concurrency, isolated)


@settings
class Given:
    """A function object, for the Python API (`policyloop.train(reward=f)`); it has no YAML form."""

    function: Callable[..., object]
    weight: float = 1.0
    timeout_s: float = 30.0
    concurrency: int = 16
    name: str = ""

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.function import FunctionReward

        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        return FunctionReward(name, self.function, context, self.timeout_s, self.concurrency)


@settings
class RewardModels:
    """The score of a trained reward model: path is a run, a `reward_model/` folder, or a list of them. ensemble of several: mean, worst (the
    least), uncertainty (mean - uncertainty · standard deviation). normalise: in units of the model's own held-out spread. device: where it runs.
    """

    path: str | tuple[str, ...]
    ensemble: Literal["mean", "worst", "uncertainty"] = "mean"
    uncertainty: float = 1.0
    normalise: bool = True
    device: str = "auto"
    weight: float = 1.0
    name: str = "reward_model"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.reward_model import RewardModelReward

        paths = (self.path,) if isinstance(self.path, str) else self.path
        need(len(paths) > 0, "rewards.reward_model.path is empty", "a run or a folder", "rewards.reward_model.path")
        return RewardModelReward(self.name, paths, self.ensemble, self.uncertainty, self.normalise, self.device)


@settings
class JsonSchema:
    """1 where the whole answer is JSON that fits the schema (a table, or a file's path), else 0. fenced: a Markdown fence around it is fine."""

    schema: Mapping[str, Any] | str
    fenced: bool = True
    weight: float = 1.0
    name: str = "json_schema"

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.function import FunctionReward
        from policyloop.rewards.json_schema import FitsSchema

        return FunctionReward(self.name, FitsSchema(self.schema, self.fenced), context)


@settings
class Code:
    """1 where the answer's last Python block runs and every test of the row's column `tests` (a source text or a list of them) passes; `partial`
    pays the share. In a sandbox without network: timeout_s and memory_mb per run; Linux only.
    """

    tests: str = "tests"
    partial: bool = False
    timeout_s: float = 10.0
    memory_mb: int = 1024
    weight: float = 1.0
    name: str = "code"

    def __post_init__(self) -> None:
        need(self.timeout_s > 0, f"timeout_s = {self.timeout_s}", "seconds above 0", "rewards.code.timeout_s")
        need(self.memory_mb >= 64, f"memory_mb = {self.memory_mb}", "64 or more", "rewards.code.memory_mb")

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.code import CodeReward, RunsCode
        from policyloop.rewards.sandbox import Limits

        known = ", ".join(sorted(context.columns)) or "none"
        need(self.tests in context.columns, f"rewards.code needs column {self.tests}", f"one of {known}", "rewards.code.tests")
        return CodeReward(self.name, self.tests, RunsCode(Limits(self.timeout_s, self.memory_mb), self.partial))


@settings
class RemoteReward:
    """What a service at `url` says (POST {"rows": [{"prompt", "completion", "target"}]} -> {"scores": [...]}). timeout_s: per step; late or failed
    answers are counted and unscored, or get `fallback`. batch: rows per request. token_env: environment variable with a bearer token.
    """

    url: str
    timeout_s: float = 30.0
    fallback: float | None = None
    batch: int = 64
    token_env: str | None = None
    weight: float = 1.0
    name: str = "remote"

    def __post_init__(self) -> None:
        need(self.url.startswith(("http://", "https://")), f"url = {self.url}", "http://… or https://…", "rewards.remote.url")
        need(self.timeout_s > 0, f"timeout_s = {self.timeout_s}", "seconds above 0", "rewards.remote.timeout_s")
        need(self.batch > 0, f"batch = {self.batch}", "1 or more", "rewards.remote.batch")

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.function import FunctionReward
        from policyloop.rewards.remote import Remote

        ask = Remote(self.url, self.timeout_s, self.batch, self.token_env)
        return FunctionReward(self.name, ask, context, self.timeout_s, fallback=self.fallback)


@settings
class JudgeSettings:
    """A language model compares answers by a rubric (text, or a .txt/.md file), in both orders: 1 won, 0.5 tie or flipped verdict, 0 lost.

    url: an OpenAI-compatible address up to `/v1`. model: its name there. against: the column with the answer to beat; null = the other
    answers of the group. timeout_s: per request. concurrency: requests at once. token_env: environment variable with the key.
    """

    url: str
    model: str
    rubric: str | None = None
    against: str | None = None
    timeout_s: float = 60.0
    concurrency: int = 16
    token_env: str | None = None
    weight: float = 1.0
    name: str = "judge"

    def __post_init__(self) -> None:
        need(self.url.startswith(("http://", "https://")), f"url = {self.url}", "http://… or https://…", "rewards.judge.url")
        need(self.timeout_s > 0, f"timeout_s = {self.timeout_s}", "seconds above 0", "rewards.judge.timeout_s")
        need(self.concurrency > 0, f"concurrency = {self.concurrency}", "1 or more", "rewards.judge.concurrency")

    def judge(self) -> Judge:
        from policyloop.rewards.judge import Judge

        return Judge(self.url, self.model, self.rubric, self.timeout_s, self.concurrency, self.token_env)

    def create(self, context: Context) -> Reward:
        from policyloop.rewards.judge import JudgeReward

        known = ", ".join(sorted(context.columns)) or "none"
        there = self.against is None or self.against in context.columns
        need(there, f"rewards.judge needs column {self.against}", f"one of {known}, or null", "rewards.judge.against")
        return JudgeReward(self.name, self.judge(), self.against)


REWARDS: dict[str, type] = {
    "correct": Correct,
    "math": Math,
    "format": Format,
    "stop": Stop,
    "function": Function,
    "reward_model": RewardModels,
    "json_schema": JsonSchema,
    "code": Code,
    "judge": JudgeSettings,
    "remote": RemoteReward,
}
Term = Correct | Math | Format | Stop | Function | Given | RewardModels | JsonSchema | Code | JudgeSettings | RemoteReward


@settings
class TokenEfficiency:
    """Penalty for length beyond a share of the budget (ALGORITHMS §14.3): -weight · clip((len/budget - threshold)/(1 - threshold), 0, 1).

    length_ratio_threshold: share of the budget that costs nothing; 1 disables. length_budget: tokens, null = rollout.max_new_tokens. only_if_correct: wrong answers are not
    touched, so that an all-wrong group gets no phantom signal. action: `drop` leaves such completions unscored instead.
    weight: largest penalty; it must stay below the gap between right and wrong, so that a long right answer still beats a short wrong one.
    """

    length_ratio_threshold: float = 0.7
    weight: float = 0.2
    length_budget: int | None = None
    only_if_correct: bool = True
    action: Literal["penalise", "drop"] = "penalise"

    def __post_init__(self) -> None:
        where, threshold = "rewards.token_efficiency", self.length_ratio_threshold
        need(0 < threshold <= 1, f"length_ratio_threshold = {threshold}", "above 0, up to 1 (1 = off)", where)
        need(self.weight >= 0, f"weight = {self.weight}", "0 or more", where)
        need(
            self.length_budget is None or self.length_budget > 0,
            f"length_budget = {self.length_budget}",
            "1 or more, or null",
            where,
        )


@settings
class RangeControl:
    """What is done to rewards out of range.

    mode: clip (into [low, high]), running_z ((R - mean) / std of all rewards of earlier steps; the first step stays raw) or tanh.
    low, high: the range; outside it is counted.
    """

    mode: Literal["clip", "running_z", "tanh"] = "clip"
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        need(self.low < self.high, f"low = {self.low}, high = {self.high}", "low below high", "rewards.range_control")


@settings
class RewardsSettings:
    """terms: the rewards. combine: sum (Σ w·r), normalize_then_sum (z-score each inside the group first, GDPO), conditional (Σ w·r where
    the first term reaches the gate; weight 0 makes it a pure gate). gate_threshold: what the first term must reach. gate_fail: the
    reward where it does not. range_control, token_efficiency: null = off.
    metric: the reward whose raw value is the outcome that filters and pass rates read; null = the task's verdict, or the first reward
    where the task judges nothing. Above 0 counts as right."""

    slots: ClassVar[Mapping[str, Mapping[str, type]]] = {"terms": REWARDS}
    import_paths: ClassVar[Mapping[str, str]] = {"terms": "function"}

    terms: tuple[Term, ...] = field(default_factory=lambda: (Correct(),))
    combine: Literal["sum", "normalize_then_sum", "conditional"] = "sum"
    gate_threshold: float = 0.5
    gate_fail: float = 0.0
    metric: str | None = None
    range_control: RangeControl | None = None
    token_efficiency: TokenEfficiency | None = None

    def __post_init__(self) -> None:
        """A long right answer must still beat a short wrong one, where the gap between right and wrong can be read off."""
        term, gap = self.token_efficiency, self.gap()
        if term is not None and term.action == "penalise" and term.length_ratio_threshold < 1 and gap is not None:
            allowed = f"below {gap:g}, the gap between right and wrong: else a long right answer loses to a short wrong one"
            where = "rewards.token_efficiency.weight"
            need(term.weight < gap, f"token_efficiency.weight = {term.weight:g}", allowed, where)

    def gap(self) -> float | None:
        """Reward of right minus reward of wrong; None where a user's function or a normalisation decides it."""
        verdicts = [term.weight for term in self.terms if isinstance(term, Correct | Math)]
        control = self.range_control
        if not verdicts or self.combine != "sum" or (control is not None and control.mode != "clip"):
            return None
        return sum(verdicts) if control is None else min(sum(verdicts), control.high - control.low)
