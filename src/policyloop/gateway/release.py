"""The release as a state machine over the log's `After`: what holds plus what is seen gives the next event, or none. Pure; no clock, no I/O.

    idle -> staged -> warming -> (shadow) -> canary (step by step) -> promoted -> watching -> idle
               any of them -> idle, rolled back: the reason is the event's

`After.release` = {state, id, stable, candidate, shares {version: share}, deadline, since, step, stratum, shadow, mode, strategy, approvals,
warm_s, prior}. Since the state is the last event, a controller that dies anywhere goes on where the log stands, and of several that want to
move at once one wins and the others read again.

Example:
    >>> move = begin(After(aliases={"stable": 1}), candidate=2, settings=ReleaseSettings(), now=0.0, by="ann", id="r1")
    >>> move.type, move.after.release["state"]
    ('staged', 'staged')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policyloop.errors import BadInput, Conflict, No
from policyloop.gateway import ReleaseSettings, Strategy
from policyloop.gateway.verdict import Verdict
from policyloop.store.log import After

ACTIVE = ("staged", "warming", "shadow", "canary", "promoted", "watching")
BEFORE = ("staged", "warming", "shadow", "canary")  # the candidate is not stable yet


@dataclass(frozen=True, slots=True)
class Routing:
    """Who gets what: `share` of sessions goes to `other` (canary: the candidate; watching: the old version), the rest to `main`."""

    main: int | None
    other: int | None = None
    share: float = 0.0
    shadow: float = 0.0
    release: str = ""
    stratum: int = 0
    state: str = "idle"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the controller has observed of the candidate since the state began."""

    ready: int = 0  # backends that serve it and answered the warm-up
    healthy: int = 0  # backends that may get requests
    broken: str = ""  # why it can never be ready
    verdict: Verdict = field(default_factory=lambda: Verdict("inconclusive"))
    shadow: Verdict = field(default_factory=lambda: Verdict("inconclusive"))


@dataclass(frozen=True, slots=True)
class Move:
    """The next event of the log."""

    type: str
    reason: str
    after: After
    version: int | None = None
    report: Mapping[str, Any] | None = None


def routing(after: After) -> Routing:
    """What the aliases and the release say together. The alias rules: a release whose stable is not the alias's is void, and so is a
    quarantined candidate, so that any event that moves `stable` takes effect at once, whoever wrote it."""
    r, stable = after.release, after.aliases.get("stable")
    state, candidate, old = r.get("state", "idle"), r.get("candidate"), r.get("stable")
    plain = Routing(stable)
    if candidate is None or candidate in after.quarantined:
        return plain
    rest = {"release": r.get("id", ""), "stratum": r.get("stratum", 0), "state": state}
    if state in BEFORE and stable == old:
        share = float(r.get("shares", {}).get(str(candidate), 0.0)) if state == "canary" else 0.0
        return Routing(stable, candidate, share, float(r.get("shadow", 0.0)) if state == "shadow" else 0.0, **rest)
    if state in ("promoted", "watching") and stable == candidate and old is not None:
        return Routing(stable, old, float(r.get("shares", {}).get(str(old), 0.0)), 0.0, **rest)
    return plain


def frozen(after: After, settings: ReleaseSettings) -> bool:
    return after.failures >= settings.max_failures


def begin(
    after: After,
    candidate: int,
    settings: ReleaseSettings,
    now: float,
    *,
    by: str,
    id: str,
    strategy: Strategy | None = None,
    force: bool = False,
) -> Move:
    """idle -> staged. Errors: Conflict (one is running, updates are frozen), No (quarantined), BadInput (already stable)."""
    running = after.release.get("state", "idle")
    if running in ACTIVE:
        raise Conflict(
            f"a release of version {after.release.get('candidate')} is {running}", "none, or roll it back first", "the release"
        )
    if candidate == after.aliases.get("stable"):
        raise BadInput(f"version {candidate} is stable already", "another version", "the version")
    if not force and frozen(after, settings):
        raise Conflict(f"{after.failures} updates in a row failed: updates are frozen", "a person's --force", "force")
    if not force and candidate in after.quarantined:
        raise No(f"version {candidate} is quarantined", "another version, or force, which is recorded", "the version")
    stable = after.aliases.get("stable")
    release = {
        **{"state": "staged", "id": id, "stable": stable, "candidate": candidate, "shares": {}, "step": 0, "stratum": 0},
        **{"since": now, "deadline": now + settings.warming_s, "shadow": 0.0, "approvals": [], "by": by},
        **{"mode": settings.mode, "strategy": strategy or settings.strategy, "prior": after.aliases.get("previous")},
    }
    quarantined = tuple(v for v in after.quarantined if v != candidate)
    aliases = {**after.aliases, "candidate": candidate}
    return Move(
        "staged",
        f"release of version {candidate} against {stable}",
        replace(after, aliases=aliases, release=release, quarantined=quarantined),
        candidate,
    )


def tick(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    """The next event, or None. Anything that moved `stable` under a running release ends it."""
    state = after.release.get("state", "idle")
    if state not in ACTIVE:
        return None
    if routing(after).state != state:
        return _ended(after, "cancelled", "the stable version was moved by hand")
    return _TICKS[state](after, seen, settings, now)


def _staged(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    return _to(after, "warming", "backends are asked", now, settings.warming_s)


def _warming(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    r = after.release
    if seen.broken:
        return back(after, f"the candidate cannot be loaded: {seen.broken}")
    if seen.ready < 1:
        return back(after, f"not ready within {settings.warming_s:g} s") if now >= r["deadline"] else None
    after = replace(after, release={**r, "warm_s": round(now - r["since"], 3)})
    if r["stable"] is None:
        return _promote(after, "the first version: nothing to compare with", settings, now)
    if settings.shadow_share > 0:
        return _to(after, "shadow", "warm", now, settings.step_s, shadow=settings.shadow_share)
    return _first(after, "warm", settings, now)


def _shadow(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    if seen.shadow.outcome == "pass" and now >= after.release["since"] + settings.step_min_s:
        return _first(after, f"shadow passed: {seen.shadow.reason()}", settings, now)
    return _refused(after, seen, seen.shadow, now)


def _canary(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    r, verdict = after.release, seen.verdict
    if verdict.outcome != "pass" or now < r["since"] + settings.step_min_s:
        return _refused(after, seen, verdict, now)
    if seen.healthy < 1:
        return back(after, "no healthy backend of the candidate", verdict)
    if r["step"] + 1 < len(settings.steps):
        return _share(after, r["step"] + 1, f"passed: {verdict.reason()}", settings, now)
    if settings.approval is not None and len(r["approvals"]) < settings.approval.n:
        if not r.get("waiting"):
            release = {**r, "waiting": True, "deadline": now + settings.approval.within_s}
            return Move(
                "approval_asked",
                f"{settings.approval.n} of role {settings.approval.role}",
                replace(after, release=release),
                r["candidate"],
            )
        return back(after, "not approved in time", failed=False) if now >= r["deadline"] else None
    return _promote(after, f"passed: {verdict.reason()}", settings, now, verdict)


def _promoted(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    return _to(after, "watching", "promoted", now, settings.watch_s)


def _watching(after: After, seen: Seen, settings: ReleaseSettings, now: float) -> Move | None:
    if seen.verdict.outcome == "fail":
        return back(after, seen.verdict.reason(), seen.verdict)
    if seen.healthy < 1:
        return back(after, "no healthy backend of the new version")
    if now < after.release["deadline"]:
        return None
    ended = _ended(after, "released", f"watched {settings.watch_s:g} s without a regression")
    return replace(ended, after=replace(ended.after, failures=0), report=seen.verdict.tree())


_TICKS = {
    "staged": _staged,
    "warming": _warming,
    "shadow": _shadow,
    "canary": _canary,
    "promoted": _promoted,
    "watching": _watching,
}


# --- moves ------------------------------------------------------------------------------------------------------------------


def _refused(after: After, seen: Seen, verdict: Verdict, now: float) -> Move | None:
    """Worse, without backends, or undecided for too long: back. A step that waits for people has passed before; only worse counts then."""
    if verdict.outcome == "fail":
        return back(after, verdict.reason(), verdict)
    if seen.healthy < 1:
        return back(after, "no healthy backend of the candidate", verdict)
    if now >= after.release["deadline"]:
        return back(after, f"undecided until the deadline ({verdict.reason()})", verdict)
    return None


def back(after: After, reason: str, verdict: Verdict | None = None, failed: bool = True) -> Move:
    """One event: traffic is on the old version again, the candidate quarantined, the failure counted."""
    r = after.release
    bad, old = r["candidate"], r["stable"]
    aliases = {k: v for k, v in after.aliases.items() if k != "candidate"}
    if r["state"] in ("promoted", "watching") and old is not None:
        aliases["stable"] = old
        aliases.pop("previous", None)
        if r.get("prior") is not None and r["prior"] != old:
            aliases["previous"] = r["prior"]
    release = {**r, "state": "idle", "outcome": "rolled_back", "candidate": None, "shares": {}, "deadline": None, "shadow": 0.0}
    quarantined = tuple(sorted({*after.quarantined, bad})) if failed else after.quarantined
    failures = after.failures + 1 if failed else after.failures
    made = replace(after, aliases=aliases, release=release, quarantined=quarantined, failures=failures)
    return Move("rolled_back", reason, made, bad, verdict.tree() if verdict else None)


def pointed_back(after: After, reason: str, to: int | None = None, quarantine: bool = True) -> Move:
    """Without a release: stable goes to the version before (or `to`), what was stable is quarantined. Errors: BadInput."""
    bad, target = after.aliases.get("stable"), to if to is not None else after.aliases.get("previous")
    if target is None or target == bad:
        raise BadInput("there is no other version to go back to", "`to`: a version of the store", "to")
    aliases = {k: v for k, v in after.aliases.items() if k not in ("previous", "candidate")} | {"stable": target}
    release = {
        **after.release,
        "state": "idle",
        "outcome": "rolled_back",
        "stable": target,
        "candidate": None,
        "shares": {},
        "deadline": None,
    }
    out = {bad} if quarantine and bad is not None else set()
    quarantined = tuple(sorted({*after.quarantined, *out} - {target}))
    return Move("rolled_back", reason, replace(after, aliases=aliases, release=release, quarantined=quarantined), target)


def step(after: After, settings: ReleaseSettings, now: float, reason: str) -> Move:
    """A person's promotion: straight to promoted, whatever the step. Errors: Conflict without a candidate that is warm."""
    if after.release.get("state") not in ("shadow", "canary"):
        raise Conflict(f"the release is {after.release.get('state', 'idle')}", "a candidate in shadow or canary", "the release")
    return _promote(after, reason, settings, now)


def approve(after: After, settings: ReleaseSettings, by: str, role: str) -> Move:
    """One more signature. Errors: Conflict, No (another role, twice the same key)."""
    r = after.release
    if settings.approval is None or r.get("state") != "canary":
        raise Conflict("no release waits for approval", "one in canary with release.approval set", "the release")
    if role != settings.approval.role:
        raise No(f"{by} has role {role}", settings.approval.role, "the key's role")
    if by in r["approvals"]:
        raise No(f"{by} has approved already", f"{settings.approval.n} different keys", "the key")
    return Move("approved", f"by {by}", replace(after, release={**r, "approvals": [*r["approvals"], by]}), r["candidate"])


def _first(after: After, reason: str, settings: ReleaseSettings, now: float) -> Move:
    if after.release["mode"] == "blue_green":
        return _promote(after, reason, settings, now)
    return _share(after, 0, reason, settings, now)


def _share(after: After, step: int, reason: str, settings: ReleaseSettings, now: float) -> Move:
    r, share = after.release, settings.steps[step]
    shares = {str(r["stable"]): round(1 - share, 6), str(r["candidate"]): share}
    stratum = r["stratum"] + 1
    release = {
        **r,
        "state": "canary",
        "step": step,
        "stratum": stratum,
        "shares": shares,
        "since": now,
        "deadline": now + settings.step_s,
        "shadow": 0.0,
    }
    return Move("canary_step", f"{share:.0%}: {reason}", replace(after, release=release), r["candidate"])


def _promote(after: After, reason: str, settings: ReleaseSettings, now: float, verdict: Verdict | None = None) -> Move:
    r, hold = after.release, settings.holdback
    old, new = r["stable"], r["candidate"]
    aliases = (
        {k: v for k, v in after.aliases.items() if k != "candidate"}
        | {"stable": new}
        | ({"previous": old} if old is not None else {})
    )
    shares = {str(new): round(1 - hold, 6), str(old): hold} if old is not None and hold > 0 else {str(new): 1.0}
    # without a holdback nothing runs beside the new version: what the old one showed before the switch is the comparison
    stratum = r["stratum"] + (1 if hold > 0 else 0)
    release = {
        **r,
        "state": "promoted",
        "shares": shares,
        "stratum": stratum,
        "since": now,
        "deadline": now + settings.watch_s,
        "shadow": 0.0,
    }
    return Move("promoted", reason, replace(after, aliases=aliases, release=release), new, verdict.tree() if verdict else None)


def _to(after: After, state: str, reason: str, now: float, within: float, **more: Any) -> Move:
    r = after.release
    since = r["since"] if state == "warming" else now  # warm-up is measured from the start
    release = {**r, "state": state, "since": since, "deadline": now + within, **more}
    return Move(state, reason, replace(after, release=release), r["candidate"])


def _ended(after: After, outcome: str, reason: str) -> Move:
    release = {**after.release, "state": "idle", "outcome": outcome, "shares": {}, "deadline": None, "shadow": 0.0}
    aliases = {k: v for k, v in after.aliases.items() if k != "candidate" or v != after.release.get("candidate")}
    return Move(
        outcome, reason, replace(after, release={**release, "candidate": None}, aliases=aliases), after.release.get("candidate")
    )
