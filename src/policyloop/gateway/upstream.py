"""One request to one backend, and what its answer says about retrying.

In: a backend, a path, a body. Out: `Reply` with the status and the headers, bytes as they come; or `Failed`.

    not sent (refused, unreachable)           -> may be tried elsewhere, as often as retries allow
    sent, broken off before an answer; 500    -> may be tried elsewhere once: the request itself may be what breaks servers
    429, 502, 503, 504                        -> may be tried elsewhere
    an answer has begun                       -> never again: the client may have bytes of it
    no answer in time                         -> not again: the backend may still be working on it

aiohttp, since httpx looks at every pooled connection for every request (measured in docs/log.md).

Example:
    >>> reply = await upstream.send(backend, "/v1/chat/completions", body, {"x-request-id": "r1"}, timeout_s=60)
    >>> async for chunk in reply.chunks(): ...
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from typing import Literal

import aiohttp

from policyloop.gateway.backends import Backend

Again = Literal["yes", "once", "no"]
STATUS: dict[int, Again] = {429: "yes", 502: "yes", 503: "yes", 504: "yes", 500: "once"}
PATIENT = (429, 503)  # busy, not broken: says nothing bad about the backend
KEEP_S = 4.0  # idle connections; below the 5 s after which uvicorn (and so vLLM) closes its side
CONNECT_S = 2.0


class Failed(Exception):
    """No answer. `reason` is a word for the metrics, `again` whether another backend may be asked."""

    def __init__(self, reason: str, again: Again, status: int = 502) -> None:
        super().__init__(reason)
        self.reason, self.again, self.status = reason, again, status


class Reply:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status, self.headers = response.status, response.headers

    @property
    def version(self) -> str | None:
        return self.headers.get("x-policyloop-version")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Errors: Failed when the backend breaks off or falls silent."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            raise Failed("timeout" if isinstance(problem, TimeoutError) else "broken_off", "no") from problem

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    def close(self) -> None:
        """A whole answer gives its connection back; in the middle the backend sees it go and frees the slot."""
        self._response.close() if not self._response.content.at_eof() else self._response.release()


class Upstream:
    def __init__(self, most_connections: int = 4096) -> None:
        self._most = most_connections
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        backend: Backend,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        connect_s: float = CONNECT_S,
    ) -> Reply:
        """POST, or GET without a body. Errors: Failed."""
        more = {"authorization": f"Bearer {key}"} if (key := _key(backend)) else {}
        timeout = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=connect_s, sock_read=timeout_s)
        try:
            response = await self._open().request(
                "GET" if body is None else "POST",
                backend.settings.url.rstrip("/") + path,
                data=body,
                headers={**headers, **more},
                timeout=timeout,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as problem:
            raise Failed("unreachable", "yes") from problem
        except TimeoutError as problem:
            raise Failed("timeout", "no", 504) from problem
        except (aiohttp.ClientError, OSError) as problem:
            raise Failed("broken_off", "once") from problem
        return Reply(response)

    def _open(self) -> aiohttp.ClientSession:
        """Made inside the loop that uses it."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._most, keepalive_timeout=KEEP_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "accept"),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _key(backend: Backend) -> str | None:
    return os.environ.get(backend.settings.key_env) if backend.settings.key_env else None
