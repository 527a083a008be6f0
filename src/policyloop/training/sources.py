"""Sources without sampling: supervised rows as groups of one, in the same order, state and metrics as a rollout.

Example: a conversation [user, assistant] becomes one group whose completion's mask is 1 on the assistant's tokens, its EOS included.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from policyloop.engine import Weights
from policyloop.errors import BadInput
from policyloop.rollout.cursor import Cursor
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
        groups = [Group(d.uid, d.prompt, (self._completion(d.prompt),), (Score(None),)) for d in self.cursor.take(self.per_step)]
        self.metrics = {"time/data_wait_s": time.monotonic() - start}
        return groups

    def _completion(self, prompt: Prompt) -> Completion:
        answer = prompt.meta.get("demonstration", prompt.target)
        if answer is None:
            raise BadInput(f"prompt {prompt.id} has no answer to imitate", "a target or a `demonstration` column", "data.columns")
        key = (prompt.id, str(answer))
        if key not in self._rows:
            ids, mask = self.renderer.demonstration(prompt, str(answer))
            first = mask.index(1) if 1 in mask else len(ids)
            rest = ids[first:]
            self._rows[key] = Completion(
                ids[:first], rest, (float("nan"),) * len(rest), "stop", "data#0", str(answer), mask[first:]
            )
        return self._rows[key]

    def publish(self, weights: Weights) -> None:
        """Nothing samples here, so there is nobody to tell."""

    def state(self) -> dict[str, Any]:
        return {"position": self.cursor.position}

    def load(self, state: Mapping[str, Any]) -> None:
        self.cursor.position = int(state["position"])

    def close(self) -> None:
        """Nothing to close."""
