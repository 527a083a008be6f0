"""Retention: which versions may go, and how they go without a reader noticing.

Kept always: whatever an alias or the release points at, leased, or too young; besides the newest `keep_last` and the `keep_best` by a metric.
A version goes in two steps: `expiring` is announced in the log (from then on nobody can point at it or lease it), and after `grace_s`, if no
lease from before is left, `expired` is decided in the log (one conditional put) and only then is anything deleted. A lease seen in between
gives `kept`. Blobs go when no manifest names them and they have lain untouched for a day.

Example:
    >>> gc(store, "answers", Keep(last=5, best=1), by="ann", metric="gsm8k.accuracy")
    Swept(announced=(1, 2), deleted=(), kept=(), blobs=0, bytes=0)
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from policyloop.errors import BadInput
from policyloop.store import Keep
from policyloop.store.backend import read_if_there
from policyloop.store.log import After, State
from policyloop.store.manifest import Version
from policyloop.store.registry import GRACE_S, Shelf, Store, blob_key


@dataclass(frozen=True, slots=True)
class Swept:
    """What one pass did."""

    announced: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    blobs: int = 0
    bytes: int = 0


def metric_of(version: Version, metric: str | None) -> float | None:
    """`suite.metric` of a version's evaluation; with no name, the first figure there is."""
    figures = {
        f"{suite}.{name}": value["value"] if isinstance(value, Mapping) else value
        for suite, metrics in version.evaluation.items()
        if isinstance(metrics, Mapping)
        for name, value in metrics.items()
        if isinstance(value, Mapping | int | float)
    }
    return figures.get(metric) if metric else next(iter(figures.values()), None)


def wanted(
    versions: list[Version], state: State, leased: set[int], keep: Keep, now: float, metric: str | None, higher: bool
) -> set[int]:
    """The versions that stay, by every rule."""
    live = [v for v in versions if v.number not in state.after.expiring]
    stays = {*state.after.pointed, *leased, *(v.number for v in live[max(0, len(live) - keep.last) :])}
    scored = [(value, v.number) for v in live if (value := metric_of(v, metric)) is not None]
    scored.sort(key=lambda pair: (-pair[0] if higher else pair[0], pair[1]))
    stays |= {number for _, number in scored[: keep.best]}
    return stays | {v.number for v in live if now - _made(v) < keep.days * 86400}


def gc(
    store: Store,
    name: str,
    keep: Keep,
    *,
    by: str,
    metric: str | None = None,
    higher: bool = True,
    dry_run: bool = False,
) -> Swept:
    """One pass over one name: delete what was announced long enough ago, announce what may go next. Safe to run anywhere, any time.

    `metric`: `suite.metric` that `keep.best` ranks by. Errors: BadInput (keep nothing), Conflict (64 races lost in a row).
    """
    if keep.last < 1:
        raise BadInput(f"keep.last = {keep.last}", "1 or more: the newest version always stays", "keep.last")
    now = store.clock()
    versions, state = store.versions(name), store.state(name)
    leased = {lease.number for lease in store.leases(name)}
    stays = wanted(versions, state, leased, keep, now, metric, higher)
    due = [n for n, at in state.after.expiring.items() if now - at >= keep.grace_s]
    announced = tuple(v.number for v in versions if v.number not in stays and v.number not in state.after.expiring)
    if dry_run:
        return Swept(announced, tuple(n for n in due if n not in leased), tuple(n for n in due if n in leased))
    if announced:
        _announce(store, name, announced, by, now)
        due += [n for n in announced if keep.grace_s <= 0]
    deleted, kept = _decide(store, name, due, by)
    for number in deleted:
        _delete(store, name, number)
    return Swept(announced, deleted, kept)


def _announce(store: Store, name: str, numbers: tuple[int, ...], by: str, now: float) -> None:
    """From this event on nobody can point at these versions or lease them. What was pointed at meanwhile is left out."""

    def change(after: After) -> After:
        free = [n for n in numbers if n not in after.pointed and n not in after.expiring]
        gone = {n for n, at in after.expiring.items() if at == 0 and n not in there}
        expiring = {n: at for n, at in after.expiring.items() if n not in gone} | dict.fromkeys(free, now)
        return replace(after, expiring=expiring, last=max(after.last, *numbers))

    there = set(store.numbers(name))
    store.append(name, "expiring", by, f"versions {', '.join(map(str, numbers))} may go", change, tries=64)


def _decide(store: Store, name: str, due: list[int], by: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the announced versions: those nobody leased in time are decided to go, the others stay. Returns both."""
    if not due:
        return (), ()
    # read after the announcement: no later lease can be valid
    leased = {lease.number for lease in store.leases(name)}
    go, stay = tuple(n for n in due if n not in leased), tuple(n for n in due if n in leased)
    if stay:
        back = set(stay)
        store.append(
            name,
            "kept",
            by,
            f"versions {', '.join(map(str, stay))} are leased",
            lambda a: replace(a, expiring={n: at for n, at in a.expiring.items() if n not in back or at == 0}),
            tries=64,
        )
    if not go:
        return (), stay
    decided: list[int] = []

    def change(after: After) -> After:
        decided[:] = [n for n in go if n in after.expiring]  # `kept` by another pass meanwhile: not ours to delete
        return replace(after, expiring={**after.expiring, **dict.fromkeys(decided, 0.0)})

    store.append(name, "expired", by, f"versions {', '.join(map(str, go))}: out of retention", change, tries=64)
    return tuple(decided), stay


def _delete(store: Store, name: str, number: int) -> None:
    """The manifest becomes a tombstone (its lineage is still traced), then it is gone. Its bytes are `sweep`'s."""
    folder = f"{store.shelf}/{name}/versions/{number:08d}"
    manifest = read_if_there(store.backend, f"{folder}/manifest.json")
    if manifest is not None:  # another pass may be at the same
        store.backend.create(f"{folder}/expired.json", manifest)
        store.backend.delete(f"{folder}/manifest.json")


def sweep(store: Store, dry_run: bool = False) -> Swept:
    """Delete blobs that no manifest on any shelf names and that have lain untouched for a day, and what killed writers left."""
    shelves = [store.on(shelf) for shelf in get_args(Shelf)]
    blobs = store.backend.list("blobs/sha256")
    named = {blob_key(f.sha256) for s in shelves for name in s.names() for v in s.versions(name) for f in v.files}
    if not dry_run:
        store.backend.clean(store.clock() - GRACE_S)
    count = size = 0
    for key in blobs:
        there = store.backend.stat(key) if key not in named else None
        if there is not None and store.clock() - there.modified > GRACE_S:
            count, size = count + 1, size + there.size
            if not dry_run:
                store.backend.delete(key)
    return Swept(blobs=count, bytes=size)


def _made(version: Version) -> float:
    at: Any = version.created.get("at")
    return dt.datetime.fromisoformat(at).timestamp() if at else 0.0
