"""Rewards on the form of an answer.

Example (pattern think, `<think>` prefilled by the template): "2 plus 2.</think>The answer is 4." -> 1.0; without `</think>` -> 0.0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from policyloop.errors import BadInput
from policyloop.rewards import Row

ANSWER = re.compile(r"<answer>[^<]*\S[^<]*</answer>\s*\Z")


def thinks_once(text: str) -> bool:
    """Reasoning closed exactly once, its opening tag either first or prefilled by the template, and something after it."""
    opened, closed = text.count("<think>"), text.count("</think>")
    if closed != 1 or opened > 1 or (opened == 1 and not text.lstrip().startswith("<think>")):
        return False
    return bool(text.rpartition("</think>")[2].strip())


class FormatReward:
    """`think`, `answer` or a regular expression that must match the whole text."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        try:
            self._pattern = None if pattern == "think" else ANSWER if pattern == "answer" else re.compile(pattern, re.DOTALL)
        except re.error as problem:
            raise BadInput(f"reward pattern {pattern!r} ({problem})", "think, answer or a regular expression", "rewards") from problem
        self._search = pattern == "answer"

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return [float(self._fits(row.completion.text)) for row in rows]

    def _fits(self, text: str) -> bool:
        if self._pattern is None:
            return thinks_once(text)
        return bool(self._pattern.search(text) if self._search else self._pattern.fullmatch(text))


@dataclass(frozen=True, slots=True)
class StopReward:
    """-1 where the token limit cut the answer off."""

    name: str

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        return [-float(row.completion.finish_reason == "length") for row in rows]
