"""The prefix cache: keys and values of prompts seen lately, so that a shared system prompt or an earlier turn is not computed again.

In: a prompt's ids. Out: the longest beginning it shares with a kept prompt. Bounded in tokens, the least used leave first; cleared whenever
the weights change. Only streams use it: `run` computes every prompt, so that equal requests give equal bits.

Example:
    >>> prefixes.keep([(1, 2, 3, 4)], state); prefixes.find((1, 2, 3, 9))     # Head(length=3, ...), if 3 were worth it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policyloop.engine.kv import Head, Prefill

SHORTEST = 16  # a shorter beginning is computed faster than it is found


@dataclass(eq=False, slots=True)
class _Kept:
    ids: NDArray[np.int64]
    head: Head


class Prefixes:
    """`limit`: tokens kept at most, 0 = no cache. `found`: tokens that did not have to be computed so far."""

    def __init__(self, limit: int) -> None:
        self.limit, self.found = limit, 0
        self._kept: list[_Kept] = []  # the last used one last

    def clear(self) -> None:
        self._kept = []

    def find(self, prompt: Sequence[int]) -> Head | None:
        """What is known of this prompt; its last token is always left, since somebody must be asked for the next one."""
        best, shared = self._best(np.asarray(prompt, dtype=np.int64))
        shared = min(shared, len(prompt) - 1)
        if best is None or shared < SHORTEST:
            return None
        self._kept.remove(best)
        self._kept.append(best)
        self.found += shared
        return Head(shared, best.head.keys, best.head.values)

    def keep(self, prompts: Sequence[Sequence[int]], state: Prefill) -> None:
        """Remember prompts that bring something new: not those of which a kept one already holds the better half."""
        for i, prompt in enumerate(prompts):
            ids = np.asarray(prompt, dtype=np.int64)
            best, shared = self._best(ids)
            if not SHORTEST <= len(ids) <= self.limit or shared == len(ids):
                continue
            if best is not None and shared == len(best.ids):
                self._kept.remove(best)  # the new one goes on where it ended
            elif 2 * shared >= len(ids):
                continue
            keys, values = state.prompt(i)
            self._kept.append(_Kept(ids, Head(len(ids), keys, values)))
            while sum(len(kept.ids) for kept in self._kept) > self.limit:
                self._kept.pop(0)

    def _best(self, ids: NDArray[np.int64]) -> tuple[_Kept | None, int]:
        best, most = None, 0
        for kept in self._kept:
            n = min(len(ids), len(kept.ids))
            differ = np.flatnonzero(ids[:n] != kept.ids[:n])
            shared = int(differ[0]) if len(differ) else n
            if shared > most:
                best, most = kept, shared
        return best, most
