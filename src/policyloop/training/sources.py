"""Sources without sampling: supervised rows as groups of one, pairs as groups of two, in the same order, state and metrics as a rollout.

Example: a conversation [user, assistant] becomes one group whose completion's mask is 1 on the assistant's tokens, its EOS included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from policyloop.engine import Weights
from policyloop.errors import BadInput
from policyloop.rollout.cursor import Cursor, Draw
from policyloop.types import Completion, Group, Message, Progress, Prompt, Score


class ConversationRenderer(Protocol):
    """What supervised training needs of `models.template.Renderer`."""

    def conversation(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[int, ...]]: ...

    def demonstration(self, prompt: Prompt, answer: str) -> tuple[tuple[int, ...], tuple[int, ...]]: ...


class SupervisedSource:
    """Prompts whose `meta["answer"]` (else target) is the text to imitate."""

    def __init__(self, prompts: Sequence[Prompt], renderer: ConversationRenderer, *, per_step: int, seed: int) -> None:
        self.cursor = Cursor(prompts, seed, per_step)
        self.renderer, self.per_step = renderer, per_step
        self.metrics: dict[str, float] = {}
        self.wants_weights = False
        self._rows: dict[tuple[str, str], Completion] = {}

    def next(self, progress: Progress) -> list[Group]:
        start = time.monotonic()
        groups = [self._group(draw) for draw in self.cursor.take(self.per_step)]
        self.metrics = {"time/data_wait_s": time.monotonic() - start}
        return groups

    def _group(self, draw: Draw) -> Group:
        answer = draw.prompt.meta.get("demonstration", draw.prompt.target)
        if answer is None:
            raise BadInput(
                f"prompt {draw.prompt.id} has no answer to imitate", "a target or a `demonstration` column", "data.columns"
            )
        return Group(draw.uid, draw.prompt, (self._completion(draw.prompt, str(answer)),))

    def _completion(self, prompt: Prompt, answer: str) -> Completion:
        key = (prompt.id, answer)
        if key not in self._rows:
            self._rows[key] = demonstrated(prompt, answer, self.renderer)
        return self._rows[key]

    def publish(self, weights: Weights) -> None:
        """Nothing samples here, so there is nobody to tell."""

    def state(self) -> dict[str, Any]:
        return {"position": self.cursor.position}

    def load(self, state: Mapping[str, Any]) -> None:
        self.cursor.position = int(state["position"])

    def close(self) -> None:
        """Nothing to close."""


class PairSource(SupervisedSource):
    """Prompts whose `meta["chosen"]` and `meta["rejected"]` are compared: groups of 2, chosen first, both after the same prompt ids.
    Scores that the rows bring along become the scores of the sides."""

    def __init__(self, prompts: Sequence[Prompt], renderer: ConversationRenderer, *, per_step: int, seed: int) -> None:
        super().__init__(prompts, renderer, per_step=per_step, seed=seed)
        for prompt in prompts:
            _sides(prompt)

    def _group(self, draw: Draw) -> Group:
        return pair_of(draw.uid, draw.prompt, self._completion)


def pair_of(uid: str, prompt: Prompt, complete: Callable[[Prompt, str], Completion]) -> Group:
    """One pair as a group. Errors: BadInput where the prompt has no two sides."""
    scores = [prompt.meta.get(f"score_{side}") for side in ("chosen", "rejected")]
    return Group(uid, prompt, tuple(complete(prompt, side) for side in _sides(prompt)), tuple(Score(s) for s in scores))


def _sides(prompt: Prompt) -> tuple[str, str]:
    chosen, rejected = prompt.meta.get("chosen"), prompt.meta.get("rejected")
    if chosen is None or rejected is None:
        raise BadInput(
            f"prompt {prompt.id} of {prompt.task} is no pair",
            "data.task: preference (rows with chosen and rejected)",
            "data.task",
        )
    return str(chosen), str(rejected)


def demonstrated(prompt: Prompt, answer: str, renderer: ConversationRenderer) -> Completion:
    """A given answer as a completion: the ids that would have been sampled, without log-probs."""
    ids, mask = renderer.demonstration(prompt, answer)
    first = mask.index(1) if 1 in mask else len(ids)
    rest = ids[first:]
    return Completion(ids[:first], rest, (float("nan"),) * len(rest), "stop", "data#0", answer, mask[first:])
