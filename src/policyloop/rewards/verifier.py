"""Verified rewards: 1 right, 0 wrong, None where the gold cannot be judged.

Example: completion "#### 5" against gold "5" -> 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policyloop.rewards import Grade, Row
from policyloop.rewards.running import in_thread
from policyloop.types import Completion, Prompt


async def judged(grade: Grade, rows: Sequence[Row]) -> list[float | None]:
    """Every row's verdict, off the event loop, so that rewards that wait for a service wait meanwhile."""
    verdicts = await in_thread(lambda: [grade(prompt, completion) for prompt, completion in rows])
    return [None if v is None else float(v) for v in verdicts]


@dataclass(frozen=True, slots=True)
class CorrectReward:
    """The task's own verdict."""

    name: str
    grade: Grade

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return await judged(self.grade, rows)


@dataclass(frozen=True, slots=True)
class MathReward:
    """The exact grader on the text; with `needs_stop` a completion that was cut off is wrong."""

    name: str
    needs_stop: bool

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return await judged(self._grade, rows)

    def _grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        from policyloop.rewards.math import grade

        right = None if prompt.target is None else grade(completion.text, prompt.target)
        return right and (completion.finish_reason == "stop" or not self.needs_stop)
