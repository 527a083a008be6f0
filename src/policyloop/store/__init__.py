"""The store: versions that cannot change, and one log per model that says which of them counts. No torch.

A version is a set of files named by their sha256 and a manifest written last. What may change (aliases, release state, failures, quarantine)
lies in a numbered, hash-chained, create-only log: the state is the last event, and every move is one conditional put of the next one. So
promotion, rollback, canary step and audit need no lock and cannot fork, on a disk and on S3 alike.

The surface:
    open_store(uri) -> Store                            a path, file://, s3://, gs://, az://; None = $POLICYLOOP_STORE, else ./store
    store.publish(name, folder | {path: bytes | Path}, kind=, base=, lineage=, evaluation=, serving=, checks=, by=) -> Version
    store.version(name, n) · versions(name) · numbers(name) · names() · resolve("name@alias|n") -> Version
    store.fetch(version | "name@stable", to=None) -> Path          every byte checked; store.read(version, path) -> bytes
    store.verify(version) -> [what was changed]                    verify.verify(store) over everything, chains too
    store.state(name) -> State(n, type, by, at, reason, report, after=After(aliases, release, failures, quarantined, ...))
    store.append(name, type, by, reason, change: After -> After, version=, report=, expect_n=) -> State, or Conflict
    store.events(name, after=n) · state_at(name, when)             what happened, what held then
    store.put_report(name, {...}) -> digest · report(name, digest)
    store.lease(version, holder, seconds) · release(lease) · leases(name);  leases.holding(...) as a `with`
    moves.promote · rollback · nominate · set_alias;  retention.gc · sweep;  store.on("datasets" | "reward_models")

`checks` of a manifest: {name: {passed: bool, ...}}; one that did not pass forbids promotion. A gate report is a mapping with `verdict`
(SHIP, HOLD, INCONCLUSIVE), stored by `append(name, "gate_passed" | "gate_failed" | "gate_undecided", ..., version=n, report=report)`.

Example:
    >>> store = open_store("s3://bucket/store")
    >>> version = store.publish("answers", Path("bundle"), lineage={"run": "demo", "step": 20})
    >>> moves.promote(store, version, by="ann", reason="first", force=True).stable
    1
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import Literal

from policyloop.store.backend import is_remote, open_backend
from policyloop.store.leases import Lease, holding
from policyloop.store.log import After, Change, State
from policyloop.store.manifest import File, Version
from policyloop.store.registry import Shelf, Store, actor, cache_root, version_in
from policyloop.types import settings

__all__ = [
    "After",
    "Change",
    "File",
    "Keep",
    "Lease",
    "Shelf",
    "State",
    "Store",
    "StoreSettings",
    "Version",
    "actor",
    "cache_root",
    "holding",
    "is_remote",
    "open_store",
    "stored",
    "version_in",
]


@settings
class Keep:
    """What retention leaves in the store besides stable, candidate, previous and whatever is leased.

    last: newest versions. best: best by the evaluation metric. days: everything younger. grace_s: seconds between the announcement
    of a deletion and the deletion.
    """

    last: int = 5
    best: int = 1
    days: float = 7.0
    grace_s: float = 3600.0


@settings
class StoreSettings:
    """Where a finished run goes. The table is optional: without it nothing is registered.

    uri: a folder, s3://bucket/prefix, gs:// or az://; null = POLICYLOOP_STORE, else `store`. name: the model's name there; null = the
    run's. register: which checkpoint becomes a version at the end, by the evaluation metric. export: what is registered; null = the
    checkpoint as it is, else a bundle of this format with its parity check (`export.parity`); beyond its limits the version is there,
    may not be promoted, and no alias moves. alias: also point this alias at it.
    hook: `package.module:function` called with store and version afterwards (it may promote). keep: retention after registering.
    """

    uri: str | None = None
    name: str | None = None
    register: Literal["best", "last", "none"] = "best"
    export: Literal["merged", "int8", "int4", "gguf"] | None = None
    alias: str | None = "candidate"
    hook: str | None = None
    keep: Keep | None = field(default_factory=Keep)


def open_store(uri: str | None = None, shelf: Shelf = "models") -> Store:
    """The store at a URI; nothing is read or written yet. Errors: BadInput for an unknown scheme."""
    return Store(open_backend(uri or os.environ.get("POLICYLOOP_STORE") or "store"), shelf)


def stored(text: str, uri: str | None = None) -> tuple[Store, Version] | None:
    """A stored version by name: `answers@stable`, `answers@3`, or with its store before it, `s3://bucket/store/answers@3`.

    None: `text` is no such name. Errors: NotFound.
    """
    if text.startswith("run://") or "@" not in text.rpartition("/")[2]:
        return None
    where, slash, name = text.rpartition("/")
    store = open_store(where if slash else uri)
    return store, store.resolve(name)
