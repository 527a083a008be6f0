"""The store as the console shows it: what serves, what is on trial, versions with their lineage and reports, the log, the release river.

Example:
    >>> standing(open_store("store"), "answers")["stable"]
    3
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from policyloop.errors import StoreError
from policyloop.gateway import release as machine
from policyloop.gateway.release import routing
from policyloop.store import State, Store, Version, open_store
from policyloop.store.log import check_chain

Row = dict[str, Any]
MOST_EVENTS = 500


def standing(store: Store, name: str) -> Row:
    """One line: what serves and what is on trial."""
    state, numbers = store.state(name), store.numbers(name)
    r = routing(state.after)
    candidate = r.other if r.state in machine.BEFORE else state.candidate
    return {
        "name": name,
        "n": state.n,
        "at": state.at,
        "stable": state.stable,
        "previous": state.previous,
        "candidate": candidate if candidate != state.stable else None,
        "state": r.state,
        "shares": shares(state),
        "deadline": state.after.release.get("deadline"),
        "strategy": state.after.release.get("strategy"),
        "failures": state.after.failures,
        "quarantined": list(state.after.quarantined),
        "versions": len(numbers),
        "newest": numbers[-1] if numbers else None,
        "aliases": dict(state.after.aliases),
        "last": line(state) if state.n else None,
    }


def shares(state: State) -> dict[str, float]:
    """Version -> its share of the traffic after this event."""
    r = routing(state.after)
    return {str(v): s for v, s in ((r.main, 1 - r.share), (r.other, r.share)) if v is not None and s > 0}


def line(event: State) -> Row:
    return {k: getattr(event, k) for k in ("n", "at", "by", "type", "version", "reason", "report", "sha256")}


def model(store: Store, name: str) -> Row:
    """Everything of one model: versions newest first, events newest first, the river, and whether the chain holds."""
    events = store.events(name)
    reports = evidence(store, name, events)
    return standing(store, name) | {
        "versions": [version_row(v, events) for v in reversed(store.versions(name))],
        "events": [line(e) for e in reversed(events[-MOST_EVENTS:])],
        "left_out": max(0, len(events) - MOST_EVENTS),
        "chain": check_chain(events, name),
        "river": [
            {"n": e.n, "at": e.at, "type": e.type, "shares": shares(e), "evidence": reports.get(e.n, [])}
            for e in events[-MOST_EVENTS:]
        ],
    }


def version_row(version: Version, events: list[State]) -> Row:
    reports = [e for e in events if e.version == version.number and e.report]
    return {
        "number": version.number,
        "id": version.id,
        "kind": version.kind,
        "size": version.size,
        "created": dict(version.created),
        "lineage": dict(version.lineage),
        "evaluation": dict(version.evaluation),
        "checks": dict(version.checks),
        "base": version.base,
        "files": [asdict(f) for f in version.files][:200],
        "reports": [{"n": e.n, "type": e.type, "digest": e.report} for e in reversed(reports)],
    }


def evidence(store: Store, name: str, events: list[State]) -> dict[int, list[Row]]:
    """What the release's own events say they were decided on: event -> signals, each against its bound."""
    found: dict[int, list[Row]] = {}
    for event in [e for e in events if e.report and e.type in ("canary_step", "promoted", "rolled_back")][-40:]:
        try:
            signals = store.report(name, str(event.report)).get("signals") or []
        except StoreError:
            continue  # a report that retention took, or that was changed: `models verify` tells which
        found[event.n] = [signal_row(s) for s in signals if isinstance(s, Mapping) and "worse_bound" in s]
    return found


def signal_row(signal: Mapping[str, Any]) -> Row:
    return {k: signal.get(k) for k in ("signal", "outcome", "worse", "worse_bound", "not_worse", "not_worse_bound", "difference")}


def waiting(models: list[Row]) -> list[Row]:
    """What a person has to decide: a candidate that nobody tries, a release under way, no stable version, failures."""
    found: list[Row] = []
    for m in models:
        link = f"#/models/{m['name']}"
        if m["candidate"] is not None and m["state"] == "idle" and m["candidate"] not in m["quarantined"]:
            found.append({"kind": "candidate", "what": f"{m['name']}@{m['candidate']}", "link": link})
        if m["state"] in machine.BEFORE:
            found.append({"kind": "trial", "what": f"{m['name']}@{m['candidate']}, {m['state']}", "link": link})
        if m["stable"] is None and m["newest"] is not None:
            found.append({"kind": "first", "what": m["name"], "link": link})
        if m["failures"] >= 1:
            found.append({"kind": "failed", "what": f"{m['name']}: {m['failures']}", "link": link})
    return found


# --- feedback ---------------------------------------------------------------------------------------------------------------


def feedback(uri: str | None) -> Row:
    """How many requests are in the journal, and what was said of them. Reads what has been shipped to the store."""
    from policyloop.journal.shipping import Shelf

    shelf, sets = Shelf.at(uri), open_store(uri).on("datasets")
    said = shelf.read("feedback").select(["request_id", "at", "key", "kind", "value", "label"]).to_pylist()
    records = shelf.read("records")
    versions = Counter(records.column("version").to_pylist())
    return {
        "records": records.num_rows,
        "by_version": [[v or "", n] for v, n in versions.most_common(50)],
        "feedback": len(said),
        "by_kind": Counter(s["kind"] for s in said).most_common(),
        "by_key": Counter(s["key"] or "" for s in said).most_common(20),
        "newest": [{**s, "value": json.loads(s["value"])} for s in sorted(said, key=lambda s: -s["at"])[:100]],
        "sets": [str(v) for name in sets.names() for v in sets.versions(name)][-50:],
    }


def followed(request_id: str, uri: str | None) -> Row:
    """One request with all that became of it; token ids stay in the journal. Errors: NotFound."""
    from policyloop.collect.trace import trace

    found = trace(request_id, uri)
    record = {k: v for k, v in found["record"].items() if k not in ("token_ids", "prompt_token_ids", "logprobs")}
    said = [{**s, "value": json.loads(s["value"])} for s in found["feedback"]]
    return {**found, "record": record, "feedback": said}
