"""Which prompts come next: a stateless walk, so that its whole state is one number.

Position p of an endless line is item p mod n of a permutation drawn for epoch p // n; every row comes once per epoch, and a step that
crosses the end of an epoch takes the rest from the next one. Resuming is `position = saved`.

Example: 7 prompts, 3 a step: steps take positions 0-2, 3-5, 6 and 7 and 8 (the last two from epoch 1).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from policyloop.errors import BadInput
from policyloop.types import Prompt


@dataclass(frozen=True, slots=True)
class Draw:
    """A prompt in its place: `uid` = prompt id/epoch/occurrence (equal prompts in one epoch stay separate groups)."""

    uid: str
    prompt: Prompt
    epoch: int


class Cursor:
    """Walks over `prompts` in an order that depends on `seed` and the epoch only."""

    def __init__(self, prompts: Sequence[Prompt], seed: int, per_step: int) -> None:
        if len(prompts) < per_step:
            raise BadInput(
                f"{len(prompts)} training prompts make 0 batches of {per_step}",
                f"at least {per_step} prompts, or prompts_per_step up to {len(prompts)}",
                "training.prompts_per_step or data",
            )
        self.prompts, self.seed, self.position = prompts, seed, 0
        self._order: tuple[int, list[Draw]] = (-1, [])

    def take(self, count: int) -> list[Draw]:
        drawn = self.peek(count)
        self.position += count
        return drawn

    def peek(self, count: int) -> list[Draw]:
        """The next `count` draws without moving (prefetch)."""
        n = len(self.prompts)
        return [self._epoch(p // n)[p % n] for p in range(self.position, self.position + count)]

    def _epoch(self, epoch: int) -> list[Draw]:
        if self._order[0] != epoch:
            order = list(range(len(self.prompts)))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            seen: Counter[str] = Counter()
            draws = []
            for i in order:
                prompt = self.prompts[i]
                draws.append(Draw(f"{prompt.id}/{epoch}/{seen[prompt.id]}", prompt, epoch))
                seen[prompt.id] += 1
            self._order = (epoch, draws)
        return self._order[1]
