"""What an answer says about itself while it passes: its end mark, its errors, its tokens and, if somebody wants it, its text.

In: bytes as a backend sends them, whole or as a stream. Out: `Answer`, filled on the way; nothing is changed or held back.

Example:
    >>> answer = Answer(); answer.events(b'data: {"choices":[...]}\\n\\ndata: [DONE]\\n\\n'); answer.finish
    'done'
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

UNREADABLE = (ValueError, AttributeError, TypeError, LookupError)


@dataclass
class Answer:
    """`finish`: the reason of a whole answer; `done` or `error` at the end of a stream."""

    wants_text: bool = False
    pieces: list[str] = field(default_factory=list)
    tokens: int = 0
    finish: str = ""
    reason: str = ""
    tail: bytes = b""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def whole(self, content: bytes) -> None:
        try:
            tree = json.loads(content)
            self.tokens = int((tree.get("usage") or {}).get("completion_tokens") or 0)
            choice = (tree.get("choices") or [{}])[0]
            self.finish = self.reason = choice.get("finish_reason") or ""
            text = tree.get("answer") or choice.get("text") or (choice.get("message") or {}).get("content")
            self.pieces = [text] if isinstance(text, str) else []
        except UNREADABLE:
            return

    def events(self, data: bytes) -> None:
        """More of a stream. A line that is not whole yet waits for its rest."""
        lines, _, self.tail = (self.tail + data).rpartition(b"\n")
        for line in lines.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            body = line[5:].strip()
            if body == b"[DONE]":
                self.finish = "done"
                continue
            if body.startswith((b'{"error"', b'{ "error"')):
                self.finish = "error"
            self.tokens += 1  # an event a token, unless usage says better
            if self.wants_text or b'"usage"' in body:
                self._event(body)

    def _event(self, body: bytes) -> None:
        try:
            tree: Any = json.loads(body)
            if tree.get("usage"):
                self.tokens = int(tree["usage"]["completion_tokens"])
            for choice in tree.get("choices", ())[:1]:
                self.reason = choice.get("finish_reason") or self.reason
                piece = choice.get("text") or (choice.get("delta") or {}).get("content")
                if isinstance(piece, str):
                    self.pieces.append(piece)
        except UNREADABLE:
            return
