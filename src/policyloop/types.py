"""The nouns that every room shares. Plain dataclasses; torch is named in annotations only and never imported here.

Shape suffixes: N rows (every completion of one optimizer step, kept or not), G completions of one prompt, T completion tokens,
L positions of one packed micro-batch, V vocabulary.

The chain: `Prompt` --engine--> `Completion` --rewards--> `Score`; all completions of one prompt = `Group`;
groups of one step = `Batch` (tensors, no token ids); what a model eats = `Packed` (token ids, no rewards).

Example (two completions of one prompt, the second was cut off by the token limit):
    prompt      What is 2+3?            ids [11, 12, 13]
    completion  "5<eos>"                token_ids [21, 2]      logprobs [-0.1, -0.2]        finish_reason "stop"
    completion  "let me think"          token_ids [31, 32, 33] logprobs [-1.0, -0.9, -2.1]  finish_reason "length"
    mask_NT     [[1, 1, 0], [1, 1, 1]]  group_N [0, 0]  rewards_N [1., 0.]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(cls: type[T]) -> type[T]:
    """A part that is its own configuration: frozen, keyword-only, refuses unknown keys and booleans in place of numbers.

    `Clip(low=0.2, high=0.28)` is the code, the YAML table, the manifest entry and the repr at once (DESIGN §4.2).
    The attribute is pydantic's own hook; `config` reads it, nothing here imports pydantic.
    """
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__pydantic_config__ = {"extra": "forbid", "strict": True}  # type: ignore[attr-defined]
    return made


# --- data -------------------------------------------------------------------------------------------------------------------

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question. Exactly one of `messages` (rendered by the chat template) and `text` (used as it is) is set.

    `target` is the gold answer as the text of the file, never re-typed. `meta` keeps other columns (rewards may ask for them)
    and `meta["cluster"]`, the key by which intervals are clustered, where items are not independent.
    """

    id: str
    task: str
    messages: tuple[Message, ...] | None = None
    text: str | None = None
    target: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def make(
        task: str,
        content: str | Sequence[Message],
        target: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """A prompt whose id is the hash of task, content and target: the same in split, run, journal and contamination check."""
        messages = None if isinstance(content, str) else tuple(content)
        text = content if isinstance(content, str) else None
        spoken = text if messages is None else [[m.role, m.content] for m in messages]
        key = json.dumps([task, spoken, target], ensure_ascii=False, separators=(",", ":"))
        digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return Prompt(digest, task, messages, text, target, dict(meta or {}))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off; `n` completions per prompt.
    `ignore_eos`: the model's own stop ids do not end an answer (measuring at a fixed length)."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int = 0
    n: int = 1
    logprobs: bool = True
    ignore_eos: bool = False


FinishReason = Literal["stop", "length", "abort", "deadline", "error"]


@dataclass(frozen=True, slots=True)
class Completion:
    """One engine answer. `token_ids` are the sampled ids themselves (the stop token included), never re-tokenised text.

    `mask` is 1 on tokens the policy generated, 0 on tool or observation tokens. `logprobs` are the engine's, of
    log-softmax(logits / temperature) over the full vocabulary, NaN where missing. `policy_version` is `<run>#<n>` or
    `<name>@<n>`. `text` is the answer as a reader sees it: decoded, stop token and stop string left out.
    """

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    policy_version: str
    text: str
    mask: tuple[int, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.mask:
            object.__setattr__(self, "mask", (1,) * len(self.token_ids))
        if not len(self.token_ids) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"a completion has {len(self.token_ids)} tokens, {len(self.mask)} mask entries, {len(self.logprobs)} log-probs"
            )

    @property
    def length(self) -> int:
        """Tokens the policy generated; lengths always come from the mask."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Score:
    """What a completion is worth. `value` is the shaped reward (None = unscored: counted, never 0), `components` the raw parts
    by name (NaN = not applicable), `metric` the raw outcome before any shaping (dynamic sampling, difficulty and pass rates
    read only this), `info` whatever explains it."""

    value: float | None
    components: Mapping[str, float] = field(default_factory=dict)
    metric: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt. `uid` = prompt id/epoch/occurrence. An SFT row is a group of 1, a pair a group of 2 (chosen
    first). `keep` is what the filter marked (all True before it); a filter marks, it never drops."""

    uid: str
    prompt: Prompt
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...] = ()
    keep: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not self.scores:
            object.__setattr__(self, "scores", (Score(None),) * len(self.completions))
        if not self.keep:
            object.__setattr__(self, "keep", (True,) * len(self.completions))
        if not len(self.completions) == len(self.scores) == len(self.keep):
            raise ValueError("a group needs one score and one keep mark per completion")


# --- tensors ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Batch:
    """One rollout's or one optimizer step's rows, in prompt order, kept or not. Right-padded to T; padding may hold garbage.

    mask_NT bool (policy's own tokens; empty rows allowed) · counted_NT bool (tokens that enter denominators) · group_N int64 ·
    keep_N bool · rewards_N float64, NaN = unscored · metric_N float64, NaN = none · length_N int64 = mask sum ·
    finished_N bool (finish_reason stop) · rollout_logprobs_NT float32, NaN = missing · old_logprobs_NT, ref_logprobs_NT,
    values_NT float32 or None when nothing needs them · after_N: the critic's value of the state after a row's last token ·
    step_rewards_NT: process rewards at the token where each step ends, NaN elsewhere. Set on the way: advantages_NT float32 detached · returns_NT · weight_NT
    (who divides by what, decided once for the whole optimizer step; rows without weight get no forward).
    """

    mask_NT: Tensor
    counted_NT: Tensor
    group_N: Tensor
    keep_N: Tensor
    rewards_N: Tensor
    metric_N: Tensor
    length_N: Tensor
    finished_N: Tensor
    rollout_logprobs_NT: Tensor
    old_logprobs_NT: Tensor | None = None
    ref_logprobs_NT: Tensor | None = None
    values_NT: Tensor | None = None
    after_N: Tensor | None = None
    step_rewards_NT: Tensor | None = None
    advantages_NT: Tensor | None = None
    returns_NT: Tensor | None = None
    weight_NT: Tensor | None = None

    def __len__(self) -> int:
        return int(self.mask_NT.shape[0])

    def rows(self, index: Tensor | Sequence[int]) -> Batch:
        """The given rows in the given order; every field is cut alike, so log-probs and advantages can never part ways."""
        cut: dict[str, Any] = {f.name: None if (x := getattr(self, f.name)) is None else x[index] for f in fields(self)}
        return Batch(**cut)


@dataclass(frozen=True, slots=True)
class Segment:
    """One prompt and completions that share it, at `start` in the packed row: the prompt's tokens, then each completion's."""

    start: int
    prompt_tokens: int
    completion_tokens: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Packed:
    """One micro-batch as model input: prompts once per group, then the completions, all in one row of L positions.

    token_ids_L, position_ids_L int64 · layout: segments for the attention function · row_NT int64: the position whose hidden
    state predicts token t of row n (the position BEFORE it), -1 on padding · target_NT int64: that token, 0 on padding ·
    needed_NT bool: where log-probs are asked for.
    """

    token_ids_L: Tensor
    position_ids_L: Tensor
    layout: tuple[Segment, ...]
    row_NT: Tensor
    target_NT: Tensor
    needed_NT: Tensor


@dataclass(slots=True)
class Outputs:
    """What a policy says of packed rows: logprobs_NT and entropy_NT float32, 0 where not needed; values_NT from a critic."""

    logprobs_NT: Tensor
    entropy_NT: Tensor
    values_NT: Tensor | None = None


# --- progress and what moves with it ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: rollout `step` of `steps`, optimizer `update` of `updates` (both 0-based, those done so far)."""

    step: int = 0
    steps: int = 1
    update: int = 0
    updates: int = 1
    epoch: int = 0

    @property
    def fraction(self) -> float:
        """Share of planned updates done, in [0, 1]."""
        return min(1.0, self.update / max(1, self.updates))
