"""`POST /v1/feedback`: what each kind takes, over real HTTP; acknowledged means on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from policyloop.errors import BadInput, Unavailable
from policyloop.journal import JournalSettings
from policyloop.journal.feedback import FeedbackBody, Kind, accept, value_of
from policyloop.journal.segments import rows_of
from policyloop.journal.writer import Journal


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        *(("thumb", "up", 1.0), ("thumb", "down", -1.0), ("thumb", 1, 1.0), ("thumb", -1, -1.0), ("thumb", True, 1.0)),
        *(("thumb", False, -1.0), ("score", 0.25, 0.25), ("score", 1, 1.0), ("outcome", True, 1.0), ("outcome", 0, 0.0)),
        *(("answer", " 42 ", "42"), ("answer", 42, "42"), ("edit", "The answer is 42.", "The answer is 42.")),
    ],
)
def test_one_spelling_per_kind(kind: Kind, given: Any, kept: Any) -> None:
    assert value_of(kind, given) == kept


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *(
            ("thumb", "yes"),
            ("thumb", 2),
            ("thumb", 0.5),
            ("score", 1.5),
            ("score", float("nan")),
            ("score", "0.5"),
            ("score", True),
        ),
        *(("outcome", "won"), ("answer", "  "), ("answer", "x" * 4001), ("answer", False), ("edit", "a\0b"), ("edit", "\ud800")),
    ],
)
def test_what_a_kind_does_not_mean_is_refused(kind: Kind, given: Any) -> None:
    with pytest.raises(BadInput, match=f"of a {kind}"):
        value_of(kind, given)


def test_acknowledged_over_http_is_on_disk(tmp_path: Path) -> None:
    app = FastAPI()
    journal = Journal(JournalSettings(folder=str(tmp_path / "journal"), store=str(tmp_path / "store")))

    @app.post("/v1/feedback")
    def feedback(body: FeedbackBody) -> dict[str, Any]:
        return accept(body, "team-a", journal, label=True)

    with TestClient(app) as client:
        reply = client.post("/v1/feedback", json={"request_id": "r1", "kind": "answer", "value": 7, "user": "ann"})
        assert reply.json() == {"object": "feedback", "request_id": "r1", "kind": "answer", "recorded": True}
        (path,) = (tmp_path / "journal").glob("*/*.open")
        ((kind, row),) = rows_of(path)
        assert kind == "feedback" and (row["request_id"], row["key"], row["user"], row["label"]) == ("r1", "team-a", "ann", True)
        assert row["value"] == "7"
        for bad in (
            {"request_id": "", "kind": "thumb", "value": 1},
            {"request_id": "r", "kind": "like", "value": 1},
            {"request_id": "r"},
        ):
            assert client.post("/v1/feedback", json=bad).status_code == 422
    journal.close()


def test_without_a_journal_nothing_is_acknowledged() -> None:
    with pytest.raises(Unavailable, match="journal"):
        accept(FeedbackBody(request_id="r", kind="thumb", value=1), "k", None)
