"""The join: journal tables in, one row per request with the votes that may count out.

A request counts once (the copy with token ids wins over a gateway's), a voice's last word of a kind counts, and only who asked, or a
key that may label, speaks of a request.

Example:
    >>> joined(records, feedback, shared_keys=("app",), model=None)[0]["votes"]
    [{'voice': 'app/ann', 'label': False, 'kind': 'thumb', 'value': '1.0', 'at': 1796094993.8}]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    import pyarrow as pa

SQL = """
WITH asked AS (
    SELECT * FROM records
    WHERE source IN ('serve', 'canary') AND ($model IS NULL OR model = $model)
    QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY len(token_ids) DESC, length(text) DESC, "at", version) = 1
), said AS (
    SELECT request_id, key, "user", label, kind, value, "at",
        CASE WHEN list_contains($shared, key) THEN key || '/' || "user" ELSE key END AS voice
    FROM feedback
    QUALIFY row_number() OVER (PARTITION BY request_id, voice, kind ORDER BY "at" DESC, value) = 1
), heard AS (
    SELECT s.request_id,
        list({voice: s.voice, label: s.label, kind: s.kind, value: s.value, "at": s."at"} ORDER BY s."at", s.voice, s.kind) AS votes
    FROM said s JOIN asked a USING (request_id)
    WHERE s.label OR (s.key = a.key AND (s."user" = a."user" OR NOT list_contains($shared, s.key) OR a."user" = ''))
    GROUP BY s.request_id
)
SELECT a.*, coalesce(h.votes, []) AS votes,
    CASE WHEN list_contains($shared, a.key) THEN a.key || '/' || a."user" ELSE a.key END AS voice
FROM asked a LEFT JOIN heard h USING (request_id)
ORDER BY a."at", a.request_id
"""


def joined(records: pa.Table, feedback: pa.Table, shared_keys: Sequence[str], model: str | None) -> list[dict[str, Any]]:
    """Requests in the order they were asked, `prompt` and `sampling` as values again."""
    with duckdb.connect(":memory:") as db:
        db.register("records", records)
        db.register("feedback", feedback)
        table: pa.Table = db.sql(SQL, params={"shared": list(shared_keys), "model": model}).to_arrow_table()
    rows = table.to_pylist()
    for row in rows:
        row["prompt"], row["sampling"] = json.loads(row["prompt"]), json.loads(row["sampling"] or "{}")
        for vote in row["votes"]:
            vote["value"] = json.loads(vote["value"])
    return rows
