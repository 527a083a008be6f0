"""Errors a user can meet. In: what was given, what is allowed, where to change it. Out: one sentence, an exit code, an HTTP status.

Only `cli` and `api` translate these; anything that is not a `Problem` is a bug and keeps its traceback.

Example:
    >>> print(BadInput("training.lr = -1", "a number above 0", "training.lr in run.yaml"))
    training.lr = -1: allowed is a number above 0 (change training.lr in run.yaml)
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Literal


class Exit(IntEnum):
    """Exit codes of every verb (DESIGN §7)."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    NO = 3
    UNDECIDED = 4
    INTERRUPTED = 75


class Problem(Exception):
    """Something outside the code is wrong: `given` was found, `allowed` would work, `where` it is changed."""

    exit_code: ClassVar[Exit] = Exit.FAILED
    http_status: ClassVar[int] = 500

    def __init__(self, given: str, allowed: str = "", where: str = "") -> None:
        super().__init__(given, allowed, where)
        self.given, self.allowed, self.where = given, allowed, where

    def __str__(self) -> str:
        allowed = f": allowed is {self.allowed}" if self.allowed else ""
        where = f" (change {self.where})" if self.where else ""
        return f"{self.given}{allowed}{where}"


class BadInput(Problem):
    exit_code, http_status = Exit.BAD_INPUT, 400


class NotFound(Problem):
    exit_code, http_status = Exit.BAD_INPUT, 404


class Denied(Problem):
    exit_code, http_status = Exit.BAD_INPUT, 403


class Unauthenticated(Denied):
    """Nobody known is asking: no key where one is needed, or one that is in no file."""

    http_status = 401


class Conflict(Problem):
    http_status = 409


class StaleVersion(Conflict):
    """Weights older or other than the ones already published were offered."""


class _Later(Problem):
    """`retry_after_s`: when asking again makes sense, as computed; None = not known."""

    def __init__(self, given: str, allowed: str = "", where: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(given, allowed, where)
        self.retry_after_s = retry_after_s


class Overloaded(_Later):
    """Too much is asked of us."""

    http_status = 429


class Unavailable(_Later):
    """Nobody is there to do it."""

    http_status = 503


StoreFault = Literal["quota", "permission", "network", "missing", "unconditional", "corrupt"]


class StoreError(Problem):
    """Reading or writing stored bytes failed; `fault` says which kind, so that the advice can differ."""

    http_status = 503

    def __init__(self, fault: StoreFault, given: str, allowed: str = "", where: str = "") -> None:
        super().__init__(given, allowed, where)
        self.fault = fault


class No(Problem):
    """The answer is no (HOLD)."""

    exit_code, http_status = Exit.NO, 409


class Undecided(Problem):
    """The evidence does not decide (INCONCLUSIVE)."""

    exit_code = Exit.UNDECIDED


class Interrupted(Problem):
    """SIGTERM or SIGINT: a checkpoint was saved, the run can go on."""

    exit_code = Exit.INTERRUPTED
