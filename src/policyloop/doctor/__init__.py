"""Doctor: what is wrong, in words, each line with its fix. `environment` looks at a machine, `run` at a run folder.

In: nothing, or a run folder. Out: `Check`s, most serious first.

Example:
    >>> Check("disk", "fail", "0.1 GB free under runs", "free some space").line()
    'fail  disk: 0.1 GB free under runs; fix: free some space'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "warn", "fail"]
ORDER: dict[Verdict, int] = {"fail": 0, "warn": 1, "note": 2, "ok": 3}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and the fix where it is not ok."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""

    def line(self) -> str:
        return f"{self.verdict:<4}  {self.name}: {self.found}" + (f"; fix: {self.fix}" if self.fix else "")


def failed(checks: Sequence[Check]) -> bool:
    return any(check.verdict == "fail" for check in checks)
