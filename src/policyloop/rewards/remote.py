"""A reward behind an HTTP address: one POST per step (or per `batch` answers), numbers back.

    POST url  {"rows": [{"prompt": text or messages, "completion": text, "target": text or null}]}  ->  {"scores": [number or null]}

null = does not apply. A reply that is late, refused or of another length leaves its rows unscored and counted; with `fallback` they get
that number instead (still counted). One retry, after a 429, 502, 503, 504 or a broken connection, within the time that is left.

Example:
    >>> await Remote("http://127.0.0.1:8002/score", timeout_s=5)(prompts=["2+3="], completions=["5"])
    [1.0]
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any

import httpx

from policyloop.errors import BadInput

AGAIN = {429, 502, 503, 504}


class Remote:
    """An async function of all answers. `token_env`: the environment variable with a bearer token (secrets are in no config)."""

    def __init__(self, url: str, timeout_s: float, batch: int = 64, token_env: str | None = None) -> None:
        self.url, self.timeout_s, self.batch = url, timeout_s, batch
        self.headers = bearer(token_env, "rewards.remote.token_env")

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[str], target: Sequence[str | None] = ()
    ) -> list[float | None]:
        golds = list(target) or [None] * len(completions)
        rows = [{"prompt": p, "completion": c, "target": t} for p, c, t in zip(prompts, completions, golds, strict=True)]
        async with httpx.AsyncClient(timeout=self.timeout_s, headers=self.headers) as client:
            parts = [rows[i : i + self.batch] for i in range(0, len(rows), self.batch)]
            found = await asyncio.gather(*(self._part(client, part) for part in parts))
        return [score for part in found for score in part]

    async def _part(self, client: httpx.AsyncClient, rows: Sequence[dict[str, Any]]) -> list[float | None]:
        reply = await posted(client, self.url, {"rows": list(rows)}, self.timeout_s)
        scores = reply.get("scores") if isinstance(reply, dict) else None
        if not isinstance(scores, list) or len(scores) != len(rows):
            raise ValueError(f"{self.url} answered {str(reply)[:80]} to {len(rows)} rows")
        return scores


async def posted(client: httpx.AsyncClient, url: str, body: dict[str, Any], timeout_s: float) -> Any:
    """The reply's JSON; one retry where that helps. Errors: httpx.HTTPError, ValueError (no JSON)."""
    end = time.monotonic() + timeout_s
    for attempt in range(2):
        try:
            response = await client.post(url, json=body, timeout=max(0.01, end - time.monotonic()))
            if response.status_code not in AGAIN or attempt:
                response.raise_for_status()
                return response.json()
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
            if attempt:
                raise
        await asyncio.sleep(min(0.2, max(0.0, end - time.monotonic())))
    raise AssertionError("the second attempt returns or raises")


def bearer(token_env: str | None, where: str) -> dict[str, str]:
    if token_env is None:
        return {}
    token = os.environ.get(token_env)
    if not token:
        raise BadInput(f"{where} = {token_env}, and the environment has no {token_env}", "a variable that holds the token", where)
    return {"Authorization": f"Bearer {token}"}
