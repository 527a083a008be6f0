"""One model at this gateway: its backends, what its log says, which of its versions a session gets, and what the versions have shown.

In: the log's last state. Out: an arm and a backend for a request; units of evidence. The log is the only truth: `adopt` makes routing follow
it at once, and after a restart the same state gives the same routing.

Example:
    >>> desk.adopt(store.state("math"))
    >>> arm = desk.arm(session="ann"); desk.backend(arm, "ann", now, tried=())
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from policyloop.errors import NotFound, Unavailable
from policyloop.gateway import RouteSettings
from policyloop.gateway.backends import Backend, of_version
from policyloop.gateway.balance import Chooser, wants_candidate
from policyloop.gateway.release import Routing, routing
from policyloop.gateway.verdict import Evidence, Key
from policyloop.stats import Arm
from policyloop.store.log import State

REMEMBERED = 100_000  # requests whose feedback can still be told apart by version


@dataclass(frozen=True, slots=True)
class Pick:
    """The arm of one request: which version, and where its outcome counts. `main`: the version most sessions get."""

    version: int | None
    release: str
    stratum: int
    main: bool


class Desk:
    def __init__(self, route: RouteSettings) -> None:
        self.route, self.name = route, route.name
        self.backends = [Backend(b, route.health) for b in route.backends]
        self.state, self.routing = State(), Routing(None)
        self.read_at = 0.0
        self.running = 0
        self.busy_s = 1.0  # how long a request takes, a running mean: what Retry-After is computed from
        self.warm: set[tuple[str, str]] = set()  # (release, backend) that answered the warm-up
        self.warm_failures = 0
        self.why_cold = ""
        self.evidence = self._fresh()
        self.others: dict[Key, Arm] = {}  # what the other replicas have written
        self.got: dict[int | None, int] = {}  # answered requests by version: the split as it was
        self._choosers: dict[int | None, Chooser] = {}
        self._recent: OrderedDict[str, tuple[Pick, str, str]] = OrderedDict()

    def _fresh(self) -> Evidence:
        return Evidence(self.route.release.unit_outcomes, self.route.release.unit_idle_s)

    # --- the log ------------------------------------------------------------------------------------------------------------

    def adopt(self, state: State) -> bool:
        """Follow the log; whether anything is new. An older state than the one known is never followed."""
        self.read_at = time.monotonic()
        if state.n <= self.state.n:
            return False
        before, self.state, self.routing = self.routing.release, state, routing(state.after)
        if self.routing.release != before:
            self.evidence, self.others = self._fresh(), {}
            self.warm_failures, self.why_cold = 0, ""
            self.warm = {w for w in self.warm if w[0] == self.routing.release}
        return True

    def version_name(self, version: int | None) -> str:
        return self.name if version is None else f"{self.name}@{version}"

    # --- who gets a request -------------------------------------------------------------------------------------------------

    def pinned(self, which: str) -> Pick:
        """`name@alias` or `name@3`: no part of a release. Errors: NotFound."""
        version = int(which) if which.isdigit() else self.state.after.aliases.get(which)
        if version is None or not self._serving(version):
            there = sorted({str(b.version) for b in self.backends if b.version is not None} | {*self.state.after.aliases})
            raise NotFound(f"{self.name}@{which} is not served here", ", ".join(there) or "none", "model")
        return Pick(version, "", 0, version == self.routing.main)

    def arm(self, session: str) -> Pick:
        r = self.routing
        if r.other is not None and r.share > 0 and wants_candidate(r.release, session, r.share):
            return Pick(r.other, r.release, r.stratum, False)
        return Pick(r.main, r.release, r.stratum, True)

    def stable_instead(self, pick: Pick) -> Pick:
        """Where a request of the smaller arm goes when that arm cannot answer."""
        return Pick(self.routing.main, pick.release, pick.stratum, True)

    def backend(self, version: int | None, session: str | None, now: float, tried: Collection[Backend] = ()) -> Backend | None:
        """A usable backend of the version, the session's own where there is one; None if all are down or were tried."""
        usable = [b for b in self._serving(version) if b not in tried and b.usable(now)]
        if not usable:
            return None
        chooser = self._choosers.setdefault(version, Chooser(self.route.balance))
        return chooser.choose(usable, session if self.route.sticky else None)

    def _serving(self, version: int | None) -> list[Backend]:
        """A backend that does not say what it serves serves the stable version; without a stable one every backend will do whose
        version is neither on trial nor quarantined."""
        if version is None:
            out = {self.routing.other, *self.state.after.quarantined} - {None}
            return [b for b in self.backends if b.version not in out]
        found = of_version(self.backends, version)
        return found or (of_version(self.backends, None) if version == self.routing.main else [])

    def usable(self, version: int | None, now: float) -> list[Backend]:
        return [b for b in self._serving(version) if b.usable(now)]

    def nobody(self, version: int | None, now: float) -> Unavailable:
        """Why nobody can answer, and when to ask again: the next check, or the next trial of an open circuit."""
        h, serving = self.route.health, self._serving(version)
        waits = [max(h.interval_s, (b.opened_at + h.breaker_open_s - now) if b.opened_at is not None else 0.0) for b in serving]
        why = next((b.why_down for b in serving if b.why_down), "no backend serves it")
        return Unavailable(f"no healthy backend of {self.version_name(version)} ({why})", retry_after_s=min(waits, default=5.0))

    # --- what was seen ------------------------------------------------------------------------------------------------------

    def saw(self, pick: Pick, session: str, signal: str, value: float, now: float, alone: bool = False) -> None:
        """One outcome of a request of the running release. `alone`: a request without a session, seen once for this signal."""
        if not pick.release or pick.release != self.routing.release or pick.version is None:
            return
        if alone:
            self.evidence.single(version=pick.version, stratum=pick.stratum, signal=signal, value=value)
        else:
            self.evidence.outcome(
                version=pick.version, session=session, stratum=pick.stratum, signal=signal, value=value, now=now
            )

    def remember(self, request_id: str, pick: Pick, session: str, key: str) -> None:
        self._recent[request_id] = (pick, session, key)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)

    def recall(self, request_id: str) -> tuple[Pick, str, str] | None:
        return self._recent.get(request_id)

    def took(self, seconds: float) -> None:
        self.busy_s += 0.1 * (seconds - self.busy_s)

    def arms(self) -> dict[Key, Arm]:
        """All replicas' evidence: this one's as it is, the others' as last written."""
        out = dict(self.others)
        for key, arm in self.evidence.arms().items():
            out[key] = out.get(key, Arm()) + arm
        return out
