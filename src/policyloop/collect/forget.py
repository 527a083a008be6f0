"""Forgetting: everything of one person out of journal, feedback, curated sets and their copies; which versions learned from it.

In: a user, session or key name. Out: a `Forgotten` report. The order makes it safe to repeat: the journal is marked first (nothing comes
back), then each set is published again without the rows, the old one deleted with its bytes. A model that was trained on the rows cannot
forget them by itself: those versions are listed, for a person to decide.

Example:
    >>> forget("ann", store="store").versions
    ['answers@3']
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from policyloop.errors import StoreError
from policyloop.journal.shipping import Shelf
from policyloop.store import Keep, Store, Version, actor, cache_root, open_store
from policyloop.store.registry import Shelf as Shelves
from policyloop.store.registry import blob_key
from policyloop.store.retention import gc


@dataclass
class Forgotten:
    """What was found and what became of it. `sets`: old set -> the one without the rows (None: nothing was left)."""

    requests: int = 0
    rows: int = 0
    sets: dict[str, str | None] = field(default_factory=dict)
    copies: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)


def forget(user: str, store: str | None = None) -> Forgotten:
    """Errors: StoreError. Repeating it after a crash finishes it."""
    shelf = Shelf.at(store)
    _, rows = shelf.forget(user)
    requests = shelf.forgotten().requests  # of earlier, perhaps unfinished, passes too
    datasets = open_store(store).on("datasets")
    found = Forgotten(len(requests), rows)
    touched: list[Version] = []
    for name in datasets.names():
        for version in datasets.versions(name):
            files = {f.path: datasets.read(version, f.path) for f in version.files}
            clean = {path: without(path, data, requests) for path, data in files.items()}
            if clean == files:
                continue
            touched.append(version)
            fresh = publish_again(datasets, version, clean)
            found.sets[str(version)] = None if fresh is None else str(fresh)
    for version in touched:
        found.copies += delete(datasets, version)
    found.versions = trained_on(datasets.on("models"), datasets, requests, touched)
    return found


def without(path: str, data: bytes, requests: frozenset[str]) -> bytes:
    """A file of a set without the rows that come from these requests; as it was where there are none."""
    if path.endswith(".jsonl"):
        kept = [line for line in data.splitlines(keepends=True) if not requests & {*json.loads(line).get("requests", ())}]
        return b"".join(kept) if len(kept) < data.count(b"\n") else data
    if path.endswith(".parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(pa.BufferReader(data))
        stays = [r not in requests for r in table["request_id"].to_pylist()]
        if all(stays):
            return data
        sink = io.BytesIO()
        pq.write_table(table.filter(pa.array(stays)), sink, compression="zstd")
        return sink.getvalue()
    return data


def publish_again(datasets: Store, version: Version, files: dict[str, bytes]) -> Version | None:
    """The set without the rows, with the old one as its parent; nothing where no row is left."""
    if not any(data for path, data in files.items() if path.endswith(".jsonl")):
        return None
    lineage = {**version.lineage, "parent": str(version), "forgotten": True}
    return datasets.publish(version.name, files, lineage=lineage, reason=f"{version} without forgotten rows")


def delete(datasets: Store, version: Version) -> list[str]:
    """Take the version out of the store at once (its manifest stays as a tombstone, for lineage), with its bytes and local copies."""
    by, now = actor(), datasets.clock()
    announce: Callable[[Any], Any] = lambda a: replace(a, expiring={**a.expiring, version.number: now - 1})  # noqa: E731
    datasets.append(version.name, "expiring", by, f"{version} holds forgotten rows", announce, tries=64)
    gc(datasets, version.name, Keep(last=10**9, best=0, days=0.0, grace_s=0.0), by=by)
    shelves = [datasets.on(shelf) for shelf in get_args(Shelves)]
    named = {f.sha256 for s in shelves for name in s.names() for v in s.versions(name) for f in v.files}
    for file in version.files:
        if file.sha256 not in named:
            datasets.backend.delete(blob_key(file.sha256))
    gone = []
    for copy in (cache_root() / "store").glob(f"{version.name}-{version.number}-{version.id[:16]}"):
        shutil.rmtree(copy)
        gone.append(str(copy))
    return gone


def trained_on(models: Store, datasets: Store, requests: frozenset[str], touched: list[Version]) -> list[str]:
    """Model versions whose lineage names a set that held the rows, now or in an earlier pass."""
    ids = {v.id for v in touched} | {str(v) for v in touched} | _tombstones(datasets)
    found = []
    for name in models.names():
        for version in models.versions(name):
            lineage = json.dumps(version.lineage, default=str)
            if any(f'"{one}"' in lineage for one in ids):
                found.append(str(version))
    return found


def _tombstones(datasets: Store) -> set[str]:
    """Sets that were deleted because of forgotten rows: `name@n` and ids."""
    found: set[str] = set()
    for name in datasets.names():
        for event in datasets.events(name):
            if event.type == "expiring" and event.reason.endswith("holds forgotten rows"):
                label = event.reason.split(" ")[0]
                found.add(label)
                key = f"datasets/{name}/versions/{int(label.rpartition('@')[2]):08d}/expired.json"
                try:
                    found.add(Version.decode(datasets.backend.read(key), key).id)
                except StoreError:
                    continue
    return found
