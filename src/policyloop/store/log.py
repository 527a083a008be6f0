"""The log of one model: numbered, hash-chained, create-only. Pointer, release state and audit at once: the state is the last event.

    models/<name>/log/<n:010d>.json = {n, prev_sha256, at, by, type, version, reason, report, id,
                                       after {aliases, release, failures, quarantined, expiring, last}}

Event n+1 holds the sha256 of event n's bytes and is written create-only: of any number of writers who read n exactly one succeeds.

Example:
    >>> event = following(State(), "promoted", by="ann", reason="gate", after=replace(After(), aliases={"stable": 3}))
    >>> decode(event, 1, "answers").stable
    3
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from policyloop.errors import StoreError

# what happened; the gateway's controller adds its own words for what it does in between
TYPES = (
    *("registered", "imported", "gate_passed", "gate_failed", "gate_undecided", "promoted", "rolled_back", "alias_moved"),
    *("candidate", "canary_step", "update_failed", "quarantined", "released", "expiring", "kept", "expired", "migrated"),
)


@dataclass(frozen=True, slots=True)
class After:
    """Everything that may change about a model. `aliases` name -> version (stable, candidate, previous, your own); `release` is the
    release controller's (state, stable, candidate, shares, deadline); `failures` in a row; `quarantined` versions are not tried
    again; `expiring` version -> when its deletion was announced (0 = decided: retention); `last` is the highest number ever given."""

    aliases: Mapping[str, int] = field(default_factory=dict)
    release: Mapping[str, Any] = field(default_factory=dict)
    failures: int = 0
    quarantined: tuple[int, ...] = ()
    expiring: Mapping[int, float] = field(default_factory=dict)
    last: int = 0

    @property
    def pointed(self) -> frozenset[int]:
        """Every version that something leads to."""
        released = (self.release.get(key) for key in ("stable", "candidate"))
        return frozenset({*self.aliases.values(), *(number for number in released if number is not None)})

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> After:
        expiring = {int(number): at for number, at in tree["expiring"].items()}
        return cls(**{**tree, "quarantined": tuple(tree["quarantined"]), "expiring": expiring})


Change = Callable[[After], After]


@dataclass(frozen=True, slots=True)
class State:
    """One event and what holds after it. `n` 0 = nothing has happened yet."""

    n: int = 0
    prev_sha256: str = ""
    at: str = ""
    by: str = ""
    type: str = ""
    version: int | None = None
    reason: str = ""
    report: str | None = None
    id: str = ""
    after: After = field(default_factory=After)
    sha256: str = ""  # of this event's bytes: what the next one must name

    @property
    def stable(self) -> int | None:
        return self.after.aliases.get("stable")

    @property
    def candidate(self) -> int | None:
        return self.after.aliases.get("candidate")

    @property
    def previous(self) -> int | None:
        return self.after.aliases.get("previous")

    @property
    def time(self) -> dt.datetime:
        return dt.datetime.fromisoformat(self.at)


def key_of(n: int) -> str:
    return f"{n:010d}.json"


def following(
    state: State, type: str, *, by: str, reason: str, after: After, version: int | None = None, report: str | None = None
) -> bytes:
    """The bytes of the event after `state`."""
    tree = {
        "n": state.n + 1,
        "prev_sha256": state.sha256,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds"),
        "by": by,
        "type": type,
        "version": version,
        "reason": reason,
        "report": report,
        "id": uuid.uuid4().hex,
        "after": asdict(after),
    }
    return json.dumps(tree, sort_keys=True, ensure_ascii=False).encode()


def decode(data: bytes, n: int, where: str) -> State:
    """Errors: StoreError(corrupt) for bytes that are not event `n`."""
    try:
        tree = json.loads(data)
        state = State(**{**tree, "after": After.of(tree["after"])}, sha256=hashlib.sha256(data).hexdigest())
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise StoreError(
            "corrupt", f"event {n} of {where} cannot be read ({problem})", "an event as it was written", where
        ) from problem
    if state.n != n:
        raise StoreError("corrupt", f"event {n} of {where} says it is {state.n}", "an event as it was written", where)
    return state


def check_chain(states: Iterable[State], where: str) -> list[str]:
    """What is wrong with the chain, in order: gaps, and events that do not name the bytes before them."""
    wrong, before = [], State()
    for state in states:
        if state.n != before.n + 1:
            wrong.append(f"{where}: event {before.n + 1} is missing")
        elif state.prev_sha256 != before.sha256:
            wrong.append(f"{where}: event {state.n} does not follow from event {before.n}: one of them was changed")
        before = state
    return wrong
