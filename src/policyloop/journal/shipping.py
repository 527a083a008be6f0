"""Segments to the store as Parquet, and back as tables: one place for one machine or fifty.

    journal/records/<day>/<writer>-<n>.parquet      what was asked and answered
    journal/feedback/<day>/<writer>-<n>.parquet     what people said
    journal/forgotten/<who>-<ms>.json               who is forgotten, from when: rows up to then are neither shipped nor read

Shipping is create-only under a name the segment fixes: shipping it again after a crash changes nothing. Forgetting rewrites files under
a new name and deletes the old one; a reader between the two sees rows twice and counts them once (by request id).

Example:
    >>> shelf = Shelf.at("s3://bucket/store")
    >>> shelf.read("records").num_rows
    120
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from policyloop.errors import StoreError
from policyloop.journal.redact import pseudonym
from policyloop.journal.segments import rows_of
from policyloop.store import open_store
from policyloop.store.backend import Backend

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["records", "feedback"]
ROOT = "journal"
WHO = {"records": ("key", "user", "session"), "feedback": ("key", "user")}  # the columns that name a person
AS_JSON = {"prompt", "sampling", "value"}  # columns whose values have many shapes: JSON text in the file


def schema(kind: Kind) -> pa.Schema:
    import pyarrow as pa

    text, ids = pa.string(), pa.list_(pa.int32())
    if kind == "feedback":
        return pa.schema(
            [
                ("request_id", text),
                ("at", pa.float64()),
                ("key", text),
                ("user", text),
                ("label", pa.bool_()),
                ("kind", text),
                ("value", text),
            ]
        )
    names = ("model", "version", "key", "user", "session", "prompt", "text", "finish_reason", "source", "target", "sampling")
    return pa.schema(
        [
            ("request_id", text),
            ("at", pa.float64()),
            *((name, text) for name in names),
            ("prompt_token_ids", ids),
            ("token_ids", ids),
            ("logprobs", pa.list_(pa.float32())),
            ("tokens", pa.int32()),
            ("latency_s", pa.float64()),
            ("redacted", pa.bool_()),
        ]
    )


def table_of(kind: Kind, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    shape = schema(kind)
    flat = [{n: json.dumps(row.get(n), ensure_ascii=False) if n in AS_JSON else row.get(n) for n in shape.names} for row in rows]
    return pa.Table.from_pylist(flat, schema=shape)


def encoded(table: pa.Table) -> bytes:
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


@dataclass(frozen=True)
class Shelf:
    """The journal's part of a store."""

    backend: Backend

    @staticmethod
    def at(uri: str | None) -> Shelf:
        """null = POLICYLOOP_STORE, else `store`."""
        return Shelf(open_store(uri).backend)

    # --- in -----------------------------------------------------------------------------------------------------------------

    def ship(self, segment: Path, name: str) -> int:
        """One sealed segment, rows of forgotten people left out. Returns how many rows lie in the store now."""
        rows: dict[Kind, list[dict[str, Any]]] = {"records": [], "feedback": []}
        for kind, row in rows_of(segment):
            if kind in rows:
                rows["records" if kind == "records" else "feedback"].append(row)
        gone, shipped = self.forgotten(), 0
        for kind, found in rows.items():
            kept = [row for row in found if not gone.covers(kind, row)]
            if kept:
                newest = max(float(row["at"]) for row in kept)
                self.backend.create(f"{ROOT}/{kind}/{day_of(newest)}/{name}.parquet", encoded(table_of(kind, kept)))
                shipped += len(kept)
        return shipped

    def expire(self, max_age_days: float) -> int:
        """Delete files whose newest row is too old. Returns how many."""
        edge, deleted = day_of(time.time() - max_age_days * 86400), 0
        for kind in WHO:
            for day in self.backend.folders(f"{ROOT}/{kind}"):
                if day < edge:
                    for key in self.backend.list(f"{ROOT}/{kind}/{day}"):
                        self.backend.delete(key)
                        deleted += 1
        return deleted

    # --- out ----------------------------------------------------------------------------------------------------------------

    def files(self, kind: Kind, since: float = 0.0) -> list[str]:
        return [key for key in self.backend.list(f"{ROOT}/{kind}") if key.split("/")[2] >= day_of(since)]

    def open(self, kind: Kind, key: str) -> pa.Table | None:
        """One file; None where it was rewritten or expired meanwhile."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(pa.BufferReader(self.backend.read(key)), schema=schema(kind))
        except StoreError as problem:
            if problem.fault != "missing":
                raise
            return None

    def read(self, kind: Kind, since: float = 0.0, until: float = float("inf")) -> pa.Table:
        """All rows of a time, those of forgotten people left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        gone, shape = self.forgotten(), schema(kind)
        found = []
        for key in self.files(kind, since):
            table = self.open(kind, key)
            if table is not None:
                table = table.filter((pc.field("at") >= since) & (pc.field("at") < until))
                found.append(gone.without(kind, table))
        return pa.concat_tables(found) if found else shape.empty_table()

    # --- forgetting ---------------------------------------------------------------------------------------------------------

    def forgotten(self) -> Forgotten:
        who: dict[str, float] = {}
        requests: set[str] = set()
        for key in self.backend.list(f"{ROOT}/forgotten"):
            mark = json.loads(self.backend.read(key))
            who[mark["who"]] = max(mark["at"], who.get(mark["who"], 0.0))
            requests.update(mark["requests"])
        return Forgotten(who, frozenset(requests))

    def forget(self, user: str, now: float | None = None) -> tuple[frozenset[str], int]:
        """Everything this person asked or said: marked first (so that nothing comes back), then cut out of every file. Returns the
        request ids and how many rows went. Repeating it after a crash finishes it."""
        now = time.time() if now is None else now
        who = user if user.startswith("p-") else pseudonym(user)
        person = Forgotten({who: now}, frozenset())
        requests = {
            row["request_id"]
            for key in self.files("records")
            if (table := self.open("records", key)) is not None
            for row in person.rows("records", table)
        }
        mark = {"schema": 1, "who": who, "at": now, "requests": sorted(requests)}
        name = hashlib.sha256(json.dumps(mark).encode()).hexdigest()[:8]
        self.backend.create(f"{ROOT}/forgotten/{who}-{int(now * 1000)}-{name}.json", json.dumps(mark).encode())
        gone, cut = self.forgotten(), 0
        for kind in ("records", "feedback"):
            for key in self.files(kind):
                cut += self._rewrite(kind, key, gone)
        return frozenset(requests), cut

    def _rewrite(self, kind: Kind, key: str, gone: Forgotten) -> int:
        table = self.open(kind, key)
        if table is None or (kept := gone.without(kind, table)).num_rows == table.num_rows:
            return 0
        if kept.num_rows:
            data = encoded(kept)
            self.backend.create(f"{key.removesuffix('.parquet')}.{hashlib.sha256(data).hexdigest()[:8]}.parquet", data)
        self.backend.delete(key)
        return table.num_rows - kept.num_rows


@dataclass(frozen=True)
class Forgotten:
    """Who (by pseudonym) is forgotten up to when, and the requests that were theirs."""

    who: Mapping[str, float]
    requests: frozenset[str]

    def covers(self, kind: Kind, row: Mapping[str, Any]) -> bool:
        if row["request_id"] in self.requests:
            return True
        names = [row[column] for column in WHO[kind] if row.get(column)] if self.who else []
        return any(row["at"] <= self.who.get(n if n.startswith("p-") else pseudonym(n), -1.0) for n in names)

    def _covered(self, kind: Kind, table: pa.Table) -> list[bool]:
        if not self.who and not self.requests:
            return [False] * table.num_rows
        return [self.covers(kind, row) for row in table.select(["request_id", "at", *WHO[kind]]).to_pylist()]

    def without(self, kind: Kind, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        covered = self._covered(kind, table)
        return table.filter(pa.array([not c for c in covered])) if any(covered) else table

    def rows(self, kind: Kind, table: pa.Table) -> list[dict[str, Any]]:
        import pyarrow as pa

        return table.filter(pa.array(self._covered(kind, table), type=pa.bool_())).to_pylist()


def day_of(at: float) -> str:
    return dt.datetime.fromtimestamp(max(0.0, at), dt.UTC).strftime("%Y-%m-%d")
