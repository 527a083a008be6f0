"""The OpenAI API's answers: whole, and as chunks of a stream. Every one names the version that made it.

In: pieces of text with their tokens, or finished `Choice`s. Out: plain dicts, ready for JSON.

Example:
    >>> reply = Reply("chat", "req-1", "arith", "arith@3")
    >>> reply.whole([Choice(0, "4", "stop", [Token("4", -0.1)])], Usage(5, 1))
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from policyloop.types import FinishReason

Kind = Literal["chat", "text"]
FINISH = {"stop": "stop", "length": "length", "abort": "abort", "deadline": "deadline", "error": "error"}


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def tree(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """`tokens`: None where no log-probs were asked for."""

    index: int
    text: str
    reason: FinishReason
    tokens: Sequence[Token] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    kind: Kind
    request_id: str
    model: str
    version: str
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        return self._head(chunk=False) | {"choices": [self._choice(c) for c in choices], "usage": usage.tree()}

    def chunk(
        self, index: int, text: str, reason: FinishReason | None, tokens: Sequence[Token] | None, first: bool
    ) -> dict[str, Any]:
        """One piece of a stream; `first`: the first of its choice, which names the role."""
        choice: dict[str, Any] = {"index": index, "finish_reason": reason and FINISH[reason], "logprobs": self._logprobs(tokens)}
        if self.kind == "text":
            choice["text"] = text
        else:
            choice["delta"] = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})
        return self._head(chunk=True) | {"choices": [choice]}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        return self._head(chunk=True) | {"choices": [], "usage": usage.tree()}

    def _head(self, chunk: bool) -> dict[str, Any]:
        name = "text_completion" if self.kind == "text" else "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.request_id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "version": self.version,
            "system_fingerprint": self.version,
        }

    def _choice(self, c: Choice) -> dict[str, Any]:
        tail = {"logprobs": self._logprobs(c.tokens), "finish_reason": FINISH[c.reason]}
        if self.kind == "text":
            return {"index": c.index, "text": c.text, **tail}
        return {"index": c.index, "message": {"role": "assistant", "content": c.text, "refusal": None}, **tail}

    def _logprobs(self, tokens: Sequence[Token] | None) -> dict[str, Any] | None:
        if tokens is None:
            return None
        values = [t.logprob if t.logprob == t.logprob else None for t in tokens]
        if self.kind == "text":
            return {"tokens": [t.text for t in tokens], "token_logprobs": values, "top_logprobs": None, "text_offset": None}
        rows = [
            {"token": t.text, "logprob": value, "bytes": list(t.text.encode("utf-8", "replace")), "top_logprobs": []}
            for t, value in zip(tokens, values, strict=True)
        ]
        return {"content": rows, "refusal": None}
