"""Moves of the pointer, each one event: promote, roll back, nominate, quarantine. What the CLI does by hand and the release controller by itself.

Example:
    >>> promote(store, store.version("answers", 3), by="ann", reason="0.71 against 0.64", report=digest)
    >>> rollback(store, "answers", by="ann", reason="worse on Tuesdays").stable
    2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policyloop.errors import BadInput, Conflict, No
from policyloop.store.log import After, State
from policyloop.store.manifest import Version
from policyloop.store.registry import Store

ON_TRIAL = ("staged", "warming", "shadow", "canary")  # states of a release whose candidate is not stable yet


def promote(
    store: Store,
    version: Version,
    *,
    by: str,
    reason: str,
    report: str | Mapping[str, Any] | None = None,
    force: bool = False,
    expect_n: int | None = None,
) -> State:
    """`version` becomes stable, what was stable becomes previous. Without `force` it needs a gate report that says SHIP, passed checks and
    no quarantine. Errors: No (what speaks against it), Conflict (somebody moved first)."""
    state = _as_decided(store, version.name, expect_n)
    report = report or _passed(store, version)
    if not force:
        _may_be_promoted(store, version, state, report)
    if state.stable == version.number:
        raise Conflict(f"{version} is stable already", "another version", "the version")
    return store.append(
        version.name,
        "promoted",
        by,
        f"{reason} (forced)" if force else reason,
        lambda a: _pointed_at(a, version.number),
        version=version.number,
        report=report,
        expect_n=state.n,
    )


def rollback(
    store: Store, name: str, *, by: str, reason: str, to: int | None = None, quarantine: bool = True, expect_n: int | None = None
) -> State:
    """Stable goes back to previous (or `to`); what was stable is quarantined unless told otherwise. While a candidate is on trial (the
    gateway sends it a share) that trial is what ends: stable stays. Errors: BadInput, Conflict."""
    state = _as_decided(store, name, expect_n)
    if to is None and state.after.release.get("state") in ON_TRIAL and state.after.release.get("stable") == state.stable:
        ended = _trial_ended(state.after, quarantine)
        return store.append(name, "rolled_back", by, reason, lambda a: ended, version=state.stable, expect_n=state.n)
    target = to if to is not None else state.previous
    if target is None or target == state.stable:
        there = ", ".join(map(str, store.numbers(name)[-8:])) or "none"
        raise BadInput(
            f"{name} has no {'previous version' if to is None else 'other version to go back to'}", f"--to one of {there}", "--to"
        )
    bad = {state.stable} if quarantine and state.stable is not None else set()

    def change(after: After) -> After:
        moved = _pointed_at(after, target)
        aliases = {k: v for k, v in moved.aliases.items() if k != "previous"}
        return replace(moved, aliases=aliases, quarantined=tuple(sorted({*after.quarantined, *bad} - {target})), failures=0)

    return store.append(name, "rolled_back", by, reason, change, version=target, expect_n=state.n)


def _as_decided(store: Store, name: str, expect_n: int | None) -> State:
    """The state, which is that of event `expect_n` if one was named. Errors: Conflict."""
    state = store.state(name)
    if expect_n is not None and state.n != expect_n:
        raise Conflict(f"{name} is at event {state.n}", f"event {expect_n}, on which this was decided", "read again, then repeat")
    return state


def _trial_ended(after: After, quarantine: bool) -> After:
    bad = after.release.get("candidate")
    aliases = {k: v for k, v in after.aliases.items() if k != "candidate"}
    release = {**after.release, "state": "idle", "outcome": "rolled_back", "candidate": None, "shares": {}, "deadline": None}
    out = {bad} if quarantine and bad is not None else set()
    return replace(after, aliases=aliases, release=release, quarantined=tuple(sorted({*after.quarantined, *out})))


def nominate(store: Store, version: Version, *, by: str, reason: str) -> State:
    """`version` becomes the candidate: what the gate judges and the gateway tries."""
    return set_alias(store, version, "candidate", by=by, reason=reason)


def set_alias(store: Store, version: Version, alias: str, *, by: str, reason: str) -> State:
    """Point an alias of your own (or candidate) at a version. Errors: BadInput for stable and previous, which only promotion moves."""
    if alias in ("stable", "previous") or alias.isdigit() or not alias.isidentifier():
        raise BadInput(f"alias {alias}", "candidate or a word of your own (stable moves by promote and rollback)", "the alias")
    type = "candidate" if alias == "candidate" else "alias_moved"
    return store.append(
        version.name,
        type,
        by,
        reason,
        lambda a: replace(a, aliases={**a.aliases, alias: version.number}),
        version=version.number,
        tries=64,
    )


def _pointed_at(after: After, number: int) -> After:
    """Stable -> number; the old stable is previous; a candidate that arrived is none any more; the release rests."""
    aliases = {**after.aliases, "stable": number}
    if (old := after.aliases.get("stable")) is not None:
        aliases["previous"] = old
    if aliases.get("candidate") == number:
        del aliases["candidate"]
    release = {**after.release, "state": "idle", "stable": number, "candidate": None, "shares": {}, "deadline": None}
    return replace(after, aliases=aliases, release=release)


def _passed(store: Store, version: Version) -> str | None:
    """The newest gate report about this version that said SHIP."""
    events = (e for e in reversed(store.events(version.name)) if e.version == version.number)
    return next((e.report for e in events if e.type == "gate_passed" and e.report), None)


def _may_be_promoted(store: Store, version: Version, state: State, report: str | Mapping[str, Any] | None) -> None:
    where, force = "the version", "another version, or --force, which is recorded"
    if version.number in state.after.quarantined:
        raise No(f"{version} is quarantined", force, where)
    if failed := version.failed_checks():
        raise No(f"{version} did not pass {', '.join(failed)}", force, where)
    if report is None:
        raise No(f"no gate report says SHIP for {version}", "`policyloop gate` of candidate and stable first, or --force", where)
    body = store.report(version.name, report) if isinstance(report, str) else report
    if body.get("verdict") != "SHIP":
        raise No(f"the gate report of {version} says {body.get('verdict')}", force, where)
