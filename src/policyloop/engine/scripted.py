"""The scripted engine: answers written down beforehand, for tests and dry runs. Same protocol, same stop rules, no model.

In: a script, (request, sample) -> Answer; or a list of token ids per sample, taken in turn. Out: completions with exactly the given ids and
log-probs, cut where the rules say (stop id, stop string, max_new_tokens).

Example:
    >>> engine = ScriptedEngine([[7, 8, 2], [9, 2]], renderer)     # sample 0 says 7 8 2, sample 1 says 9 2, sample 2 says 7 8 2, ...
    >>> ScriptedEngine(lambda request, sample: Answer(request.prompt_token_ids, logprob=-0.5), renderer)    # an echo
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policyloop.engine import Ack, Delta, EngineSpec, Request, Status, Weights
from policyloop.engine.rows import Row, StopText, TextRenderer
from policyloop.engine.sampling import check
from policyloop.errors import BadInput, StaleVersion, Unavailable
from policyloop.types import Completion, FinishReason


@dataclass(frozen=True, slots=True)
class Answer:
    """`logprobs` one per token, else `logprob` for all; `finish_reason` holds where the ids end before any stop rule does."""

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    logprob: float = -1.0
    finish_reason: FinishReason = "stop"


Script = Callable[[Request, int], Answer]


class Plain:
    """A renderer for tests without a tokenizer: token i reads ` i`."""

    stop_ids: tuple[int, ...] = ()

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f" {i}" for i in ids)

    def stream(self) -> PlainStream:
        return PlainStream()


class PlainStream:
    def push(self, ids: Sequence[int]) -> str:
        return Plain().decode(ids)

    def finish(self) -> str:
        return ""


class ScriptedEngine:
    """`requests` and `published` keep what came in."""

    def __init__(
        self,
        script: Script | Sequence[Sequence[int]],
        renderer: TextRenderer | None = None,
        version: str = "scripted#0",
        base: str = "",
    ) -> None:
        self.script = script if callable(script) else _in_turn(script)
        self.renderer: TextRenderer = renderer or Plain()
        self.version, self.base, self.digest = version, base, base
        self.requests: list[Request] = []
        self.published: list[Weights] = []
        self.closed = False

    @classmethod
    def load(cls, spec: EngineSpec) -> ScriptedEngine:
        """options: `answers`, lists of token ids. With a model path its tokenizer reads them."""
        from policyloop.models.catalogue import resolve
        from policyloop.models.policy import base_digest
        from policyloop.models.template import load_renderer

        if set(spec.options) != {"answers"}:
            raise BadInput(f"engine options {sorted(spec.options)}", "answers: [[token ids], ...]", "rollout.engine_options")
        answers: Any = spec.options["answers"]
        if not spec.model_path:
            return cls(answers, version=spec.version)
        path = resolve(spec.model_path)
        return cls(answers, load_renderer(path), spec.version, base_digest(path))

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        rows = [row for request in requests for row in self._rows(request)]
        for row in rows:
            self._play(row)
        return [row.completion(self.renderer, {"total_s": 0.0}) for row in rows]

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        """One delta per token that brings text, sample after sample."""
        deltas: list[Delta] = []
        for row in self._rows(request, deltas.append):
            self._play(row)
        for delta in deltas:
            yield delta

    def publish(self, weights: Weights) -> Ack:
        if weights.base_digest != self.base:
            raise StaleVersion(f"{weights.version} was trained from another base", "weights of the base this engine loaded")
        if any(not bool(t.isfinite().all()) for t in weights.tensors.values()):
            raise ValueError(f"{weights.version} is not finite; {self.version} stays")
        self.published.append(weights)
        self.version, self.digest = weights.version, weights.digest
        return Ack(self.version, self.digest)

    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """-1.0 per token."""
        return [-1.0] * len(token_ids)

    def status(self) -> Status:
        return Status(self.version, self.digest, base=self.base)

    def close(self, drain_s: float = 0.0) -> None:
        self.closed = True

    def _rows(self, request: Request, show: Callable[[Delta], None] | None = None) -> list[Row]:
        if self.closed:
            raise Unavailable("the engine is closed", "another engine")
        check(request.params)
        if not request.prompt_token_ids:
            raise BadInput("the prompt is empty", "at least one token", "the prompt")
        self.requests.append(request)
        p = request.params
        stop = frozenset((*(() if p.ignore_eos else self.renderer.stop_ids), *p.stop_ids))
        return [
            Row(request, s, np.uint64(0), p.max_new_tokens, stop, StopText(self.renderer.stream(), p.stop), show, self.version)
            for s in range(request.first_sample, request.first_sample + p.n)
        ]

    def _play(self, row: Row) -> None:
        answer = self.script(row.request, row.sample)
        logprobs = [answer.logprob] * len(answer.token_ids) if answer.logprobs is None else answer.logprobs
        for token, logprob in zip(answer.token_ids, logprobs, strict=True):
            if row.reason is None:
                row.push(token, logprob)
        if row.reason is None:
            row.end(answer.finish_reason)


def _in_turn(answers: Sequence[Sequence[int]]) -> Script:
    return lambda request, sample: Answer(answers[sample % len(answers)])
