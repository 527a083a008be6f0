"""The journal in the store: shipped once, read as tables, personal data nowhere (not as token ids either), forgetting reaches every file."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pytest

from policyloop.journal import Feedback, JournalSettings
from policyloop.journal.redact import pseudonym
from policyloop.journal.segments import encode
from policyloop.journal.shipping import Shelf
from policyloop.journal.writer import Journal

NOW = time.time()
PII = ["ann@example.org", "13812345678", "11010519491231002X", "4111111111111111", "DE89370400440532013000", "10.11.12.13"]
SECRETS = ["sk-abcdefghijklmnop1234", "AKIAIOSFODNN7EXAMPLE"]


def segment(path: Path, *rows: tuple[str, dict[str, Any]]) -> Path:
    path.write_bytes(b"".join(encode(kind, row) for kind, row in rows))
    return path


def asked(request_id: str, user: str = "ann", at: float = NOW) -> tuple[str, dict[str, Any]]:
    return "records", {
        "request_id": request_id,
        "at": at,
        "user": user,
        "prompt": "2+3=",
        "text": "5",
        "token_ids": [1],
        "logprobs": [None],
    }


def said(request_id: str, user: str = "ann", at: float = NOW) -> tuple[str, dict[str, Any]]:
    return "feedback", {
        "request_id": request_id,
        "at": at,
        "key": "k",
        "user": user,
        "label": False,
        "kind": "thumb",
        "value": 1.0,
    }


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf.at(str(tmp_path / "store"))


def ids(shelf: Shelf, kind: Any) -> list[str]:
    return sorted(shelf.read(kind)["request_id"].to_pylist())


def everything(shelf: Shelf) -> str:
    """Every file as it lies there, decoded."""
    kinds: tuple[Any, ...] = ("records", "feedback")
    tables = [shelf.open(kind, key) for kind in kinds for key in shelf.files(kind)]
    return repr([t.to_pylist() for t in tables if t is not None])


def test_shipping_twice_is_shipping_once(tmp_path: Path, shelf: Shelf) -> None:
    path = segment(tmp_path / "s", asked("r1"), asked("r2"), said("r1"))
    assert shelf.ship(path, "a-1") == shelf.ship(path, "a-1") == 3
    assert (ids(shelf, "records"), ids(shelf, "feedback")) == (["r1", "r2"], ["r1"])
    day = dt.datetime.fromtimestamp(NOW, dt.UTC).strftime("%Y-%m-%d")
    assert shelf.files("records") == [f"journal/records/{day}/a-1.parquet"]


def test_a_time_is_read(tmp_path: Path, shelf: Shelf) -> None:
    shelf.ship(segment(tmp_path / "s", asked("old", at=NOW - 5 * 86400), asked("new")), "a-1")
    assert shelf.read("records", since=NOW - 86400)["request_id"].to_pylist() == ["new"]
    assert shelf.read("records", until=NOW - 86400)["request_id"].to_pylist() == ["old"]


def test_old_files_expire(tmp_path: Path, shelf: Shelf) -> None:
    shelf.ship(segment(tmp_path / "a", asked("old", at=NOW - 5 * 86400)), "a-1")
    shelf.ship(segment(tmp_path / "b", asked("new")), "a-2")
    assert shelf.expire(3) == 1 and ids(shelf, "records") == ["new"]


def test_forgetting_a_person(tmp_path: Path, shelf: Shelf) -> None:
    """Their requests, what anybody said of those, what they said of others; also what is shipped only later; nobody else's rows."""
    first = segment(tmp_path / "a", asked("r1"), asked("r2", "bob"), said("r1", "bob"), said("r2"), said("r2", "bob"))
    shelf.ship(first, "a-1")
    requests, rows = shelf.forget("ann", now=NOW + 1)
    assert (requests, rows) == ({"r1"}, 3)
    assert (ids(shelf, "records"), ids(shelf, "feedback")) == (["r2"], ["r2"])
    assert "ann" not in everything(shelf)
    assert shelf.ship(segment(tmp_path / "b", asked("r3"), said("r1", "bob", NOW + 5), asked("r4", at=NOW + 60)), "b-1") == 1
    shelf.ship(first, "a-1")  # a crash between shipping and deleting the segment ships it again
    assert (ids(shelf, "records"), ids(shelf, "feedback")) == (["r2", "r2", "r4"], ["r2", "r2"])  # counted once by request id


def test_a_person_known_only_by_pseudonym_is_forgotten_by_their_name(tmp_path: Path, shelf: Shelf) -> None:
    shelf.ship(segment(tmp_path / "a", asked("r1", pseudonym("ann@example.org"))), "a-1")
    assert shelf.forget("Ann@example.org", now=NOW + 1)[1] == 1


def test_a_forgetting_that_was_cut_short_is_finished_by_the_next(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.ship(segment(tmp_path / "a", asked("r1"), asked("r2", "bob")), "a-1")
    shelf.ship(segment(tmp_path / "b", said("r1", "bob")), "b-1")
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(type(shelf.backend), "delete", lambda self, key: (_ for _ in ()).throw(KeyboardInterrupt))
        shelf.forget("ann", now=NOW + 1)
    assert ids(shelf, "records") == ["r2", "r2"]  # already unreadable
    shelf.forget("ann", now=NOW + 2)
    assert ids(shelf, "feedback") == [] and "ann" not in everything(shelf)


def test_personal_data_never_reaches_a_disk_not_as_token_ids_either(tmp_path: Path) -> None:
    """A byte-level tokenizer, so that ids can be decoded without a model; the segment is looked at before and after shipping."""
    store = tmp_path / "store"
    with Journal(JournalSettings(folder=str(tmp_path / "journal"), store=str(store))) as journal:
        for i, secret in enumerate([*PII, *SECRETS]):
            for place in ("prompt", "text", "user", "request_id", "harmless"):
                row: dict[str, Any] = {"request_id": f"{place}-{i}", "prompt": "what is it?", "text": "it is 42", "at": NOW}
                row[place] = secret if place in ("user", "request_id") else f"it is {secret}, ok"
                row["prompt_token_ids"], row["token_ids"] = list(row["prompt"].encode()), list(row["text"].encode())
                row["logprobs"] = [-1.0] * len(row["token_ids"])
                journal.append(row)
            journal.append(Feedback(request_id=f"text-{i}", at=NOW, key="k", kind="edit", value=f"say {secret}", user=secret))
        on_disk = b"".join(p.read_bytes() for p in (tmp_path / "journal").rglob("*") if p.is_file())
        assert len(on_disk) > 1000
        journal.flush()
        rows = journal.shelf.read("records").to_pylist()
        feedback = journal.shelf.read("feedback").to_pylist()
    text = on_disk.decode() + repr(rows) + repr(feedback)
    text += "".join(bytes(row[name]).decode() for row in rows for name in ("prompt_token_ids", "token_ids"))
    assert [s for s in [*PII, *SECRETS] if s in text] == []
    kept = {row["request_id"].split("-")[0] for row in rows if row["token_ids"]}
    assert "harmless" in kept and not kept & {"prompt", "text"} and len(rows) == 5 * 8
