"""Which backend gets a request: round robin, least connections, power of two choices; a session's own backend while that is healthy.

In: the healthy backends of one arm. Out: one of them. Nothing here waits or speaks HTTP.

Example:
    >>> chooser = Chooser("least_connections")
    >>> chooser.choose(backends, session=None).running
    0
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """What balancing needs to know of a backend."""

    @property
    def name(self) -> str: ...

    @property
    def running(self) -> int: ...


B = TypeVar("B", bound=Loaded)


def point(*parts: object) -> float:
    """A number in [0, 1) that these words always give: the same at every replica and after every restart."""
    key = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2**64


def affine(backends: Sequence[B], session: str) -> B:
    """The session's backend: highest hash of both names, so that a backend that leaves moves only its own sessions."""
    return max(backends, key=lambda b: (point(b.name, session), b.name))


class Chooser:
    """One arm's way to choose; `rng` for power of two."""

    def __init__(self, balance: str, rng: random.Random | None = None) -> None:
        self._turn = itertools.count()
        self._rng = rng or random.Random()
        self._how: Callable[[Sequence[Loaded]], int] = {
            "round_robin": self._round_robin,
            "least_connections": self._least_connections,
            "power_of_two": self._power_of_two,
        }[balance]

    def choose(self, backends: Sequence[B], session: str | None) -> B:
        """One of the (not empty) backends."""
        if len(backends) == 1:
            return backends[0]
        return affine(backends, session) if session is not None else backends[self._how(backends)]

    def _round_robin(self, backends: Sequence[Loaded]) -> int:
        return next(self._turn) % len(backends)

    def _least_connections(self, backends: Sequence[Loaded]) -> int:
        """Ties go round, so that idle backends share."""
        start, n = next(self._turn), len(backends)
        return min(((start + i) % n for i in range(n)), key=lambda i: backends[i].running)

    def _power_of_two(self, backends: Sequence[Loaded]) -> int:
        one, other = self._rng.sample(range(len(backends)), 2)
        return one if backends[one].running <= backends[other].running else other


def wants_candidate(release: str, session: str, share: float) -> bool:
    """Whether a session belongs to the candidate. As the share grows sessions only move to it, never back."""
    return point(release, session) < share
