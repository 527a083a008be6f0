"""Is everything as it was written? Chains, manifests, bytes, pointers; and older manifests brought to this version's schema.

Example:
    >>> verify(open_store("store"))
    Found(versions=12, events=40, bytes=3221225472, wrong=('answers@3: model.safetensors was changed (...)',), notes=())
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from policyloop.errors import NotFound, Problem
from policyloop.store.log import State, check_chain
from policyloop.store.manifest import SCHEMA, Version
from policyloop.store.registry import Store


@dataclass
class Found:
    """What was looked at; `wrong` is what must not be, `notes` what is worth knowing."""

    versions: int = 0
    events: int = 0
    bytes: int = 0
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(
    store: Store, name: str | None = None, number: int | None = None, say: Callable[[str], None] = lambda line: None
) -> Found:
    """Read everything of a shelf (or one name, one version) and compare. Nothing is changed. Errors: StoreError(network, permission)."""
    found = Found()
    for each in [name] if name else store.names():
        states = _log(store, each, found)
        numbers = store.numbers(each) if number is None else [number]
        for n in numbers:
            _version(store, each, n, found, say)
        after = states[-1].after if states else State().after
        found.wrong += [
            f"{each}: the log points at {each}@{n}, which is not there" for n in after.pointed if not store.exists(each, n)
        ]
        registered = {s.version for s in states}
        found.notes += [f"{each}@{n} has no event of its registration" for n in numbers if n not in registered]
    return found


def _log(store: Store, name: str, found: Found) -> list[State]:
    try:
        states = store.events(name)
    except Problem as problem:
        found.wrong.append(str(problem))
        return []
    found.events += len(states)
    found.wrong += check_chain(states, name)
    return states


def _version(store: Store, name: str, number: int, found: Found, say: Callable[[str], None]) -> None:
    try:
        version = store.version(name, number)
        wrong = store.verify(version)
    except NotFound:
        raise
    except Problem as problem:
        found.wrong.append(str(problem))
        return
    found.versions, found.bytes = found.versions + 1, found.bytes + version.size
    found.wrong += wrong
    say(f"{version}: {len(version.files)} files, {version.size:,} bytes, {'changed' if wrong else 'as written'}")


# --- schema -----------------------------------------------------------------------------------------------------------------

Tree = dict[str, Any]
MIGRATIONS: dict[int, Callable[[Tree], Tree]] = {}  # schema n -> how its manifest reads in n + 1


def migrate(
    store: Store, *, by: str, dry_run: bool = False, steps: Mapping[int, Callable[[Tree], Tree]] | None = None
) -> list[tuple[str, int]]:
    """Manifests of an older schema rewritten in this one, an event `migrated` for each name. Returns (version, old schema)."""
    steps, moved = MIGRATIONS if steps is None else steps, []
    for name in store.names():
        old = [(n, tree) for n in store.numbers(name) if (tree := store.raw_manifest(name, n)).get("schema", 0) in steps]
        for number, tree in old:
            moved.append((f"{name}@{number}", int(tree["schema"])))
            while not dry_run and tree["schema"] in steps and tree["schema"] < SCHEMA:
                tree = {**steps[tree["schema"]](dict(tree)), "schema": tree["schema"] + 1}
            if not dry_run:
                store.rewrite_manifest(Version.decode(json.dumps(tree).encode(), f"{name}@{number}"))
        if old and not dry_run:
            store.append(name, "migrated", by, f"{len(old)} manifests to schema {SCHEMA}", tries=64)
    return moved
