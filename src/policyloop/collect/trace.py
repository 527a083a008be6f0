"""One request, followed: what was asked and answered by which weights, what was said of it, which sets hold it, which versions learned.

Example:
    >>> trace("r1", store="store")["sets"]
    ['feedback@2']
"""

from __future__ import annotations

import json
from typing import Any

from policyloop.errors import NotFound
from policyloop.journal.shipping import Shelf
from policyloop.store import open_store


def trace(request_id: str, store: str | None = None) -> dict[str, Any]:
    """`{record, feedback, sets, versions}`. Errors: NotFound."""
    import pyarrow.compute as pc

    shelf = Shelf.at(store)
    mine = pc.field("request_id") == request_id
    records = shelf.read("records").filter(mine).to_pylist()
    if not records:
        raise NotFound(
            f"request {request_id} is not in the journal of {shelf.backend.uri}",
            "an id that was written down, not forgotten and already shipped (journal.segment_s)",
            "REQUEST_ID",
        )
    record = max(records, key=lambda row: len(row["token_ids"] or ()))
    record["prompt"], record["sampling"] = json.loads(record["prompt"]), json.loads(record["sampling"])
    feedback = sorted(shelf.read("feedback").filter(mine).to_pylist(), key=lambda row: row["at"])
    datasets = open_store(store).on("datasets")
    sets = [
        v
        for name in datasets.names()
        for v in datasets.versions(name)
        if any(request_id.encode() in datasets.read(v, f.path) for f in v.files if f.path.endswith(".jsonl"))
    ]
    ids = {v.id for v in sets} | {str(v) for v in sets}
    models = datasets.on("models")
    learned = [
        str(v)
        for name in models.names()
        for v in models.versions(name)
        if any(f'"{one}"' in json.dumps(v.lineage, default=str) for one in ids)
    ]
    return {"record": record, "feedback": feedback, "sets": [str(v) for v in sets], "versions": learned}
