"""Code that has to run: the answer's last Python block against the row's tests, in the sandbox.

Example: answer "```python\\ndef add(a, b): return a + b\\n```", tests ["assert add(2, 3) == 5"] -> 1.0.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Sequence
from typing import Any

from policyloop.errors import BadInput
from policyloop.rewards import Row
from policyloop.rewards.running import in_thread
from policyloop.rewards.sandbox import Limits, available, run

BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


class RunsCode:
    """Called once per answer. `partial`: the share of tests that pass instead of all or nothing."""

    def __init__(self, limits: Limits, partial: bool) -> None:
        if (why := available()) is not None:
            raise BadInput(
                f"rewards.code cannot run answers here: {why}", "a Linux machine with Landlock and seccomp", "rewards.code"
            )
        self.limits, self.partial = limits, partial

    def score(self, completion: str, tests: Any) -> float:
        """NaN (does not apply) where the row has no tests; 0 where the answer holds no code."""
        pieces = wanted(tests)
        if not pieces:
            return math.nan
        code = code_of(completion)
        if not code.strip():
            return 0.0
        if not self.partial:
            return float(self._passes([code, *pieces]))
        return sum(self._passes([code, test]) for test in pieces) / len(pieces)

    def _passes(self, pieces: Sequence[str]) -> bool:
        return run(pieces, self.limits).passed


class CodeReward:
    """Every row's code, as many at once as there are cores: each run has its own time limit, so a hanging one holds nothing up for long."""

    def __init__(self, name: str, tests: str, runs: RunsCode) -> None:
        self.name, self.tests, self.runs = name, tests, runs

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        slots = asyncio.Semaphore(os.cpu_count() or 1)

        async def one(row: Row) -> float | None:
            async with slots:
                return await in_thread(lambda: self.runs.score(row.completion.text, row.prompt.meta.get(self.tests)))

        return list(await asyncio.gather(*(one(row) for row in rows)))


def code_of(text: str) -> str:
    """The last fenced block (an unclosed one runs to the end); without a fence the whole text."""
    blocks = BLOCK.findall(text)
    return blocks[-1] if blocks else text


def wanted(tests: Any) -> list[str]:
    """A column of tests: one source text, or a list of them."""
    found = [tests] if isinstance(tests, str) else list(tests or [])
    return [str(test) for test in found if str(test).strip()]
