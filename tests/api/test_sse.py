"""Streams: written and read back; a failure is an error event and never a [DONE]."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from policyloop.api.sse import events, written
from policyloop.errors import Unavailable


async def _bodies(fail: Exception | None) -> AsyncIterator[Any]:
    yield {"text": "客单价 😀"}
    if fail is not None:
        raise fail


async def _lines(raw: bytes) -> AsyncIterator[str]:
    for line in raw.decode().split("\n"):
        yield line


def sent(fail: Exception | None = None) -> bytes:
    async def go() -> bytes:
        return b"".join([piece async for piece in written(_bodies(fail))])

    return asyncio.run(go())


def read(raw: bytes) -> list[Any]:
    async def go() -> list[Any]:
        return [e async for e in events(_lines(raw))]

    return asyncio.run(go())


def test_what_is_written_is_read_back() -> None:
    assert sent().endswith(b"data: [DONE]\n\n") and read(sent()) == [{"text": "客单价 😀"}]


@pytest.mark.parametrize("fail", [Unavailable("the engine is closing"), RuntimeError("inner secret")])
def test_a_failure_is_an_error_event_and_no_done(fail: Exception) -> None:
    raw = sent(fail)
    assert b"[DONE]" not in raw and b'"error"' in raw and b"secret" not in raw
    with pytest.raises(Unavailable, match="ended in an error"):
        read(raw)


def test_a_stream_that_breaks_off_is_no_success() -> None:
    with pytest.raises(Unavailable, match="broke off"):
        read(sent().removesuffix(b"data: [DONE]\n\n"))
