"""Forgetting reaches journal, feedback, sets and copies, and names the versions that learned; a request can be traced until then."""

from __future__ import annotations

from typing import Any

import pytest

from policyloop.collect import CollectSettings
from policyloop.collect.curate import curate
from policyloop.collect.forget import forget
from policyloop.collect.trace import trace
from policyloop.errors import NotFound
from policyloop.journal.shipping import Shelf
from policyloop.store import open_store


@pytest.fixture
def told(world: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two people, one set with rows of both, a version that was trained on it and one that was not."""
    monkeypatch.setenv("POLICYLOOP_CACHE", str(world.folder / "cache"))
    world.ann = world.ask("7+8=", "14", user="ann")
    world.bob = world.ask("1+1=", "3", user="bob")
    world.say(world.ann, "answer", "15")
    world.say(world.bob, "answer", "2")
    world.ship()
    world.set = curate(CollectSettings(store=world.store)).version
    store = open_store(world.store)
    store.publish("model", {"a.txt": b"1"}, lineage={"run": "x"})
    store.publish("model", {"a.txt": b"2"}, lineage={"run": "y", "data": [{"set": str(world.set), "id": world.set.id}]})
    store.on("datasets").fetch(world.set)
    return world


def everything(world: Any) -> str:
    """All bytes of store and cache; Parquet decoded."""
    shelf, kinds = Shelf.at(world.store), ("records", "feedback")
    tables = [shelf.open(kind, key) for kind in kinds for key in shelf.files(kind)]  # type: ignore[arg-type]
    files = [p.read_bytes() for root in ("store", "cache") for p in (world.folder / root).rglob("*") if p.is_file()]
    return repr(files) + repr([t.to_pylist() for t in tables if t is not None])


def test_a_request_is_traced_to_the_versions_that_learned_from_it(told: Any) -> None:
    found = trace(told.ann, told.store)
    assert (found["record"]["prompt"], found["record"]["version"], found["record"]["token_ids"]) == ("7+8=", "m@1", [0, 1, 2, 3])
    assert [v["kind"] for v in found["feedback"]] == ["answer"]
    assert found["sets"] == ["feedback@1"] and found["versions"] == ["model@2"]
    with pytest.raises(NotFound, match="r99"):
        trace("r99", told.store)


def test_forgetting_one_person(told: Any) -> None:
    found = forget("ann", told.store)
    assert (found.rows, found.sets, found.versions) == (2, {"feedback@1": "feedback@2"}, ["model@2"])
    assert len(found.copies) == 1
    assert "7+8=" not in everything(told) and "1+1=" in everything(told)
    with pytest.raises(NotFound):
        trace(told.ann, told.store)
    assert trace(told.bob, told.store)["sets"] == ["feedback@2"]
    again = forget("ann", told.store)
    assert (again.rows, again.sets, again.versions) == (0, {}, ["model@2"])  # still told, since the model still knows


def test_a_set_with_nothing_left_is_not_made_again(told: Any) -> None:
    forget("ann", told.store)
    assert forget("bob", told.store).sets == {"feedback@2": None}
    assert open_store(told.store).on("datasets").numbers("feedback") == []


def test_a_crash_between_marking_and_deleting_is_finished_by_the_next_try(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import policyloop.collect.forget as module

    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(module, "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        forget("ann", told.store)
    forget("ann", told.store)
    assert "7+8=" not in everything(told) and "1+1=" in everything(told)
