"""The store as JSON: what was appended is what is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from policyloop.store import open_store
from policyloop.ui.versions import feedback, model, standing

Page = Callable[[str], Any]


def test_the_start_page_says_what_serves_and_what_waits(page: Page) -> None:
    found = page("start")
    (m,) = found["models"]
    assert (m["stable"], m["previous"], m["candidate"], m["state"]) == (2, 1, 3, "canary")
    assert m["shares"] == {"2": 0.9, "3": 0.1}
    assert [w["kind"] for w in found["waits"]] == ["trial"]


def test_a_model_shows_versions_log_and_river(page: Page) -> None:
    m = page("models/math")
    assert [v["number"] for v in m["versions"]] == [3, 2, 1]
    assert m["versions"][0]["lineage"] == {"run": "run-3", "step": 60, "parent": "math@2"}
    assert [r["type"] for r in m["versions"][0]["reports"]] == ["canary_step", "canary_step", "gate_passed"]
    assert [e["n"] for e in m["events"]] == list(range(9, 0, -1)) and m["chain"] == []
    assert [c["shares"] for c in m["river"][3:]] == [
        {"1": 1.0},
        {"2": 1.0},
        {"2": 1.0},
        {"2": 1.0},
        {"2": 0.99, "3": 0.01},
        {"2": 0.9, "3": 0.1},
    ]
    errors = m["river"][-1]["evidence"][0]
    assert (errors["signal"], errors["worse"], errors["worse_bound"]) == ("errors", 5.0, 40.0)
    assert page(f"models/math/reports/{m['versions'][1]['reports'][0]['digest']}")["verdict"] == "SHIP"


def test_a_changed_event_breaks_the_chain_for_all_to_see(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.publish("m", {"a": b"1"}, by="t")
    store.append("m", "candidate", "t", "one")
    event = next(tmp_path.glob("models/m/log/*1.json"))
    event.write_text(event.read_text().replace('"by": "t"', '"by": "x"'))
    assert len(model(open_store(str(tmp_path)), "m")["chain"]) == 1


def test_a_name_without_a_version_in_front_has_no_shares(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.publish("m", {"a": b"1"}, by="t")
    m = standing(store, "m")
    assert (m["stable"], m["shares"], m["state"], m["newest"]) == (None, {}, "idle", 1)


def test_feedback_is_counted_and_a_request_followed(page: Page) -> None:
    found = page("feedback")
    assert (found["records"], found["feedback"]) == (6, 4)
    assert dict(found["by_kind"]) == {"thumb": 3, "answer": 1}
    assert dict(found["by_version"]) == {"math@1": 3, "math@2": 3}
    assert found["newest"][0] | {"at": 0} == {
        "request_id": "r1",
        "at": 0,
        "key": "team",
        "kind": "answer",
        "value": "7",
        "label": False,
    }
    traced = page("trace/r1")
    assert traced["record"]["version"] == "math@2" and len(traced["feedback"]) == 2
    assert not {"token_ids", "logprobs"} & set(traced["record"])


def test_an_empty_store_has_no_feedback(tmp_path: Path) -> None:
    assert feedback(str(tmp_path))["records"] == 0
