"""Server-sent events: objects out, or lines in. A stream that fails ends in an error event and never in a false `[DONE]`.

Example:
    >>> event({"a": 1})
    b'data: {"a":1}\\n\\n'
    >>> [e async for e in events(lines)]          # of `data: {"a":1}`, ``, `data: [DONE]`
    [{'a': 1}]
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from policyloop.api.faults import fault, internal
from policyloop.errors import Problem, Unavailable

log = logging.getLogger(__name__)
DONE = b"data: [DONE]\n\n"
MEDIA = "text/event-stream"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def written(bodies: AsyncIterable[Any]) -> AsyncIterator[bytes]:
    """Each object as an event, then `[DONE]`; after a failure an error event instead."""
    try:
        async for body in bodies:
            yield event(body)
    except Problem as problem:
        yield event(fault(problem)[1])
    except Exception:
        log.exception("a stream failed")
        yield event(internal()[1])
    else:
        yield DONE


async def events(lines: AsyncIterable[str]) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream that ends in `[DONE]`. Errors: Unavailable where it ends early or reports an error."""
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            body = json.loads(data)
        except ValueError as problem:
            raise Unavailable("the other server's stream is no JSON") from problem
        if not isinstance(body, dict) or "error" in body:
            raise Unavailable("the other server's stream ended in an error")
        yield body
    raise Unavailable("the other server's stream broke off")
