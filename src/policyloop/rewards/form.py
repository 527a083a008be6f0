"""Rewards on the form of an answer.

Example (pattern think, `<think>` prefilled by the template): "2 plus 2.</think>The answer is 4." -> 1.0; without `</think>` -> 0.0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from policyloop.errors import BadInput
from policyloop.rewards import Row


def thinks_once(text: str, prefilled: bool) -> bool:
    """Reasoning closed exactly once, and something after it. The opening tag stands first, or is missing: then the chat template wrote it
    (only generated text gets here). With `prefilled` a tag in the text is a second one."""
    opened, closed = text.count("<think>"), text.count("</think>")
    if closed != 1 or opened > (0 if prefilled else 1) or (opened == 1 and not text.lstrip().startswith("<think>")):
        return False
    return bool(text.rpartition("</think>")[2].strip())


def answers_last(text: str) -> bool:
    """Ends in the only <answer>…</answer>, which is not empty."""
    body = text.rstrip().partition("<answer>")[2]
    return text.count("<answer>") == text.count("</answer>") == 1 and body.endswith("</answer>") and body.strip() != "</answer>"


class FormatReward:
    """`think`, `answer` or a regular expression that must match the whole text."""

    def __init__(self, name: str, pattern: str, prefilled: bool = False) -> None:
        self.name, self.pattern, self.prefilled = name, pattern, prefilled
        try:
            self._expression = re.compile(pattern, re.DOTALL)
        except re.error as problem:
            raise BadInput(
                f"reward pattern {pattern!r} ({problem})", "think, answer or a regular expression", "rewards"
            ) from problem

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return [float(self._fits(row.completion.text)) for row in rows]

    def _fits(self, text: str) -> bool:
        if self.pattern == "think":
            return thinks_once(text, self.prefilled)
        return answers_last(text) if self.pattern == "answer" else self._expression.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class StopReward:
    """-1 where the token limit cut the answer off."""

    name: str

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return [-float(row.completion.finish_reason == "length") for row in rows]
