"""A service's life: starting, ready, draining; and what a probe may conclude from it.

`live` = the process is sound and its work loop beats (never model work, never waiting for a lock); `startup` = loading is over;
`ready` = send requests here. Draining takes no new request and lets the running ones end.

Example:
    >>> life = Lifecycle(); life.started()
    >>> with life.request(): ...          # Unavailable while starting or draining
    >>> await life.drain(25.0)            # True: everything ended well
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from policyloop.errors import Unavailable

State = Literal["starting", "ready", "draining"]
STUCK_S = 60.0  # a work loop that has not beaten for so long is stuck
DRAIN_S = 25.0  # below Kubernetes' default grace of 30 s
POLL_S = 0.02


class Lifecycle:
    """Set `version`, `beat_age_s` and `trouble` (a reason not to be ready, or None) once there is something to ask."""

    def __init__(self, stuck_s: float = STUCK_S) -> None:
        self.state: State = "starting"
        self.stuck_s = stuck_s
        self.running = 0
        self.drain_until = 0.0
        self.version: Callable[[], str] = lambda: "none"
        self.beat_age_s: Callable[[], float] = lambda: 0.0
        self.trouble: Callable[[], str | None] = lambda: None

    def started(self) -> None:
        if self.state == "starting":
            self.state = "ready"

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request from its acceptance to the last byte of its answer. Errors: Unavailable."""
        self.accept()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def accept(self) -> None:
        """Errors: Unavailable while starting, draining or in trouble."""
        if self.state == "starting":
            raise Unavailable("the model is still loading", retry_after_s=5)
        if self.state == "draining":
            raise Unavailable("this server is shutting down", retry_after_s=max(1.0, self.drain_until - time.monotonic()))
        if (reason := self.trouble()) is not None:
            raise Unavailable(reason, retry_after_s=5)

    async def drain(self, drain_s: float = DRAIN_S) -> bool:
        """From now on nothing new; whether all that ran has ended within `drain_s`."""
        self.state, self.drain_until = "draining", time.monotonic() + drain_s
        while self.running and time.monotonic() < self.drain_until:
            await asyncio.sleep(POLL_S)
        return not self.running

    # --- probes: (fine?, what they say) ---------------------------------------------------------------------------------------

    def live(self) -> tuple[bool, dict[str, Any]]:
        age = self.beat_age_s()
        return age < self.stuck_s, {"status": "live" if age < self.stuck_s else "stuck", "heartbeat_age_s": round(age, 3)}

    def startup(self) -> tuple[bool, dict[str, Any]]:
        return self.state != "starting", {"status": self.state}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        try:
            self.accept()
        except Unavailable as reason:
            return False, {"status": self.state, "reason": reason.given}
        return True, {"status": "ready", "version": self.version()}
