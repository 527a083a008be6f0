"""Webhooks: every event of the log that this replica wrote, as a signed POST. Late or lost ones change nothing: the log is the truth.

    X-Policyloop-Signature: sha256=<hex HMAC-SHA256 of the body with the secret>
    X-Policyloop-Event: rolled_back

Example (a receiver):
    >>> hmac.compare_digest(request.headers["x-policyloop-signature"], signature(secret, body))
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
from collections.abc import Callable, Sequence

import httpx

from policyloop.errors import BadInput
from policyloop.gateway import WebhookSettings
from policyloop.store import State

log = logging.getLogger(__name__)
TRIES = 3


def signature(secret: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class Webhooks:
    def __init__(self, hooks: Sequence[WebhookSettings], counted: Callable[[str], None] = lambda code: None) -> None:
        """Errors: BadInput for a secret that is not there: an unsigned call is worse than none."""
        self.hooks = [(hook, _secret(hook)) for hook in hooks]
        self.counted = counted
        self._tasks: set[asyncio.Task[None]] = set()

    def told(self, model: str, state: State) -> None:
        """Send in the background."""
        event = {
            "model": model,
            "n": state.n,
            "type": state.type,
            "at": state.at,
            "by": state.by,
            "version": state.version,
            "id": state.id,
        }
        body = json.dumps({**event, "reason": state.reason, "release": dict(state.after.release)}, ensure_ascii=False).encode()
        for hook, secret in self.hooks:
            task = asyncio.create_task(self._send(hook, secret, state.type, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, hook: WebhookSettings, secret: str, type: str, body: bytes) -> None:
        headers = {
            "content-type": "application/json",
            "x-policyloop-event": type,
            "x-policyloop-signature": signature(secret, body),
        }
        async with httpx.AsyncClient(timeout=hook.timeout_s) as client:
            code = ""
            for attempt in range(TRIES):
                try:
                    code = str((await client.post(hook.url, content=body, headers=headers)).status_code)
                except httpx.HTTPError as problem:
                    code = type_of(problem)
                self.counted(code)
                if code.startswith("2"):
                    return
                await asyncio.sleep(0.5 * 4**attempt)
        log.warning("webhook %s: %s", hook.url, code)

    async def close(self) -> None:
        """What is on its way gets a moment."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2.0)


def type_of(problem: Exception) -> str:
    return "timeout" if isinstance(problem, httpx.TimeoutException) else "unreachable"


def _secret(hook: WebhookSettings) -> str:
    secret = os.environ.get(hook.secret_env, "")
    if not secret:
        raise BadInput(
            f"the environment has no {hook.secret_env}", "a secret for signing webhooks", "gateway.webhooks[].secret_env"
        )
    return secret
