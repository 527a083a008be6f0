"""A backend as the gateway sees it: checks, circuit breaker, outlier ejection. Pure: every call is told the time.

In: outcomes of checks and of real requests. Out: whether a backend may get one now.

    check ok/bad in a row  -> up / down            (active)
    failures in a row      -> circuit open, then one trial after `breaker_open_s`, closed again by its success
    failed share of window -> ejected for `eject_s`, never more than `max_ejected` of an arm at once

Example:
    >>> backend.failed(now); backend.open(now)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from policyloop.gateway import BackendSettings, HealthSettings


class Backend:
    """One server, or one adapter on it."""

    def __init__(self, settings: BackendSettings, health: HealthSettings) -> None:
        self.settings, self.health = settings, health
        self.name = settings.url.rstrip("/") + (f"#{settings.model}" if settings.model else "")
        self.version = settings.version
        self.running = 0
        self.only_openai = False  # found out: it has no /predict
        self.up = False
        self.why_down = "not checked yet"
        self.opened_at: float | None = None  # the circuit; None = closed
        self.trial = False
        self.ejected_until = 0.0
        self._checks = 0  # > 0: good ones in a row, < 0: bad ones
        self._failures = 0
        self._recent: deque[bool] = deque(maxlen=health.eject_window)

    # --- active checks ------------------------------------------------------------------------------------------------------

    def checked(self, ok: bool, why: str = "") -> None:
        self._checks = max(1, self._checks + 1) if ok else min(-1, self._checks - 1)
        if ok and self._checks >= self.health.up_after:
            if not self.up:
                self._failures, self.opened_at, self.trial = 0, None, False
            self.up, self.why_down = True, ""
        elif not ok and (-self._checks >= self.health.down_after or not self.up):
            self.up, self.why_down = False, why

    # --- real traffic -------------------------------------------------------------------------------------------------------

    def began(self, now: float) -> None:
        self.running += 1
        if self.opened_at is not None:
            self.trial = True

    def ended(self, ok: bool | None, now: float) -> None:
        """`ok` None: it says nothing about the backend (the client left, or the client's own mistake)."""
        self.running -= 1
        if ok is None:
            self.trial = False
            return
        self._recent.append(ok)
        if ok:
            self._failures, self.opened_at, self.trial = 0, None, False
            return
        self._failures += 1
        if self.trial or self._failures >= self.health.breaker_failures:
            self.opened_at, self.trial = now, False

    def circuit(self, now: float) -> str:
        if self.opened_at is None:
            return "closed"
        return "open" if self.trial or now < self.opened_at + self.health.breaker_open_s else "half_open"

    def usable(self, now: float) -> bool:
        return self.up and self.circuit(now) != "open" and now >= self.ejected_until

    @property
    def bad_share(self) -> float:
        return self._recent.count(False) / len(self._recent) if self._recent else 0.0

    def looks_bad(self) -> bool:
        """Enough recent requests, and too many of them failed."""
        return len(self._recent) == self.health.eject_window and self.bad_share >= self.health.eject_share

    def eject(self, now: float) -> None:
        self.ejected_until = now + self.health.eject_s
        self._recent.clear()


def eject_outliers(arm: Sequence[Backend], now: float) -> list[Backend]:
    """The worst backends of an arm that look bad, as many as may be out at once."""
    if not arm:
        return []
    out = sum(now < b.ejected_until for b in arm)
    room = int(len(arm) * arm[0].health.max_ejected) - out
    bad = sorted((b for b in arm if b.looks_bad()), key=lambda b: -b.bad_share)[: max(0, room)]
    for backend in bad:
        backend.eject(now)
    return bad


def of_version(backends: Iterable[Backend], version: int | None) -> list[Backend]:
    return [b for b in backends if b.version == version]
