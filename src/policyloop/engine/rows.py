"""Rows: one completion each, on its way. A row knows when it is finished and what of its text may be shown.

In: sampled tokens, one at a time. Out: a `Completion` (`run`) or `Delta`s (`stream`); both see the same text.

Example (stop string "own fox"; the model says "The quick br", "own", " fox"):
    push 1 -> nothing held     take() "The quick br"
    push 2 -> "own" may become the stop string: held     take() ""
    push 3 -> stop     text "The quick br", finish_reason "stop"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from policyloop.engine import Delta, Request
from policyloop.types import Completion, FinishReason, SamplingParams


class Stream(Protocol):
    """Ids in, whole characters out (`models.template.TextStream`)."""

    def push(self, ids: Sequence[int]) -> str: ...

    def finish(self) -> str: ...


class TextRenderer(Protocol):
    """What an engine needs of `models.template.Renderer`."""

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def stream(self) -> Stream: ...


class StopText:
    """The text of a growing answer, cut before the first stop string. `take` gives out what is certain: no text that may still
    become a stop string, and at the end all that was held back."""

    def __init__(self, stream: Stream, stops: Sequence[str] = ()) -> None:
        self.stream, self.stops = stream, tuple(stops)
        self.text, self.stopped = "", False
        self._taken = 0
        self._longest = max(map(len, self.stops), default=0)

    def push(self, token: int) -> bool:
        """Whether a stop string is now complete."""
        return self._grow(self.stream.push([token]))

    def finish(self) -> None:
        """No token follows: nothing waits for the rest of a character any more."""
        if not self.stopped:
            self._grow(self.stream.finish())

    def take(self, last: bool = False) -> str:
        """New text to show."""
        ready = len(self.text) if last or self.stopped else len(self.text) - self._held()
        piece = self.text[self._taken : ready]
        self._taken = max(self._taken, ready)
        return piece

    def _grow(self, piece: str) -> bool:
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [at for stop in self.stops if (at := self.text.find(stop, start)) >= 0]
        if found:
            self.text, self.stopped = self.text[: min(found)], True
        return self.stopped

    def _held(self) -> int:
        """Length of the longest end of the text with which a stop string begins."""
        return max((k for stop in self.stops for k in range(1, len(stop)) if self.text.endswith(stop[:k])), default=0)


@dataclass(eq=False)
class Row:
    """One completion on its way. `limit`: tokens it may have; `show` gets its deltas where somebody watches."""

    request: Request
    sample: int
    key: np.uint64
    limit: int
    stop_ids: frozenset[int]
    text: StopText | None = None
    show: Callable[[Delta], None] | None = None
    version: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reason: FinishReason | None = None
    shown: int = 0
    start: float = 0.0  # its place in the fair queue, see `server`
    rank: float = 0.0

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    def push(self, token: int, logprob: float) -> None:
        """One more token, and whether it was the last."""
        self.ids.append(token)
        self.logprobs.append(logprob if self.params.logprobs else math.nan)
        if token in self.stop_ids or (self.text is not None and self.text.push(token)):
            self.end("stop")
        elif len(self.ids) >= self.limit:
            self.end("length")
        elif self.show is not None:
            self._show(last=False)

    def end(self, reason: FinishReason) -> None:
        self.reason = reason
        if self.text is not None:
            self.text.finish()
        if self.show is not None:
            self._show(last=True)

    def completion(self, renderer: TextRenderer, timing: Mapping[str, float]) -> Completion:
        """`token_ids` are what was sampled, stop token and stop string included; `text` is what a reader sees."""
        spoken = self.ids[:-1] if self.ids and self.ids[-1] in self.stop_ids else self.ids
        text = renderer.decode(spoken) if self.text is None else self.text.text
        reason = self.reason or "abort"
        return Completion(
            self.request.prompt_token_ids, tuple(self.ids), tuple(self.logprobs), reason, self.version, text, timing=timing
        )

    def _show(self, last: bool) -> None:
        assert self.show is not None and self.text is not None
        piece = self.text.take(last)
        if piece or last:
            ids, logprobs = tuple(self.ids[self.shown :]), tuple(self.logprobs[self.shown :])
            self.shown = len(self.ids)
            self.show(Delta(ids, logprobs, piece, self.reason, self.version, self.sample))
