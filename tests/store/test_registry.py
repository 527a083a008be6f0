"""Versions: what is published is what is read, whole or not at all; the log moves by one conditional put. On disk and on real S3."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import multiprocessing as mp
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from policyloop.errors import BadInput, Conflict, NotFound, StoreError
from policyloop.store import After, Change, Store, open_store, version_in
from policyloop.store.log import check_chain
from policyloop.store.registry import blob_key

FILES = {"config.json": b'{"a": 1}', "model.safetensors": b"weights" * 1000, "sub/tokenizer.json": b"{}"}


def pointing(alias: str, number: int) -> Change:
    return lambda a: replace(a, aliases={**a.aliases, alias: number})


def test_what_is_published_is_what_is_fetched(store: Store, tmp_path: Path) -> None:
    version = store.publish(
        "answers", dict(FILES), by="ann", lineage={"run": "demo", "step": 20}, evaluation={"gsm8k": {"accuracy": 0.7}}
    )
    assert (str(version), version.created["by"]) == ("answers@1", "ann")
    folder = store.fetch(version, tmp_path / "out")
    written = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert written == {**FILES, "version.json": version.encode()} and version_in(folder) == version
    again = open_store(store.uri).version("answers", 1)
    assert again == version and store.read(version, "config.json") == FILES["config.json"]
    assert {f.path: f.role for f in again.files} == {
        "config.json": "config",
        "model.safetensors": "weights",
        "sub/tokenizer.json": "tokenizer",
    }
    assert [f.sha256 for f in again.files] == [hashlib.sha256(FILES[f.path]).hexdigest() for f in again.files]
    assert store.verify(version) == []


def test_the_same_again_is_the_same_version_and_equal_bytes_lie_once(store: Store) -> None:
    one = store.publish("answers", dict(FILES), lineage={"step": 1})
    assert store.publish("answers", dict(FILES), lineage={"step": 1}) == one
    two = store.publish("answers", dict(FILES), lineage={"step": 2})
    assert (two.number, store.numbers("answers")) == (2, [1, 2])
    assert len(store.backend.list("blobs")) == len(FILES)


def test_names_in_all_spellings(store: Store) -> None:
    with pytest.raises(NotFound, match="nothing"):
        store.resolve("answers@1")
    for step in range(3):
        store.publish("answers", dict(FILES), lineage={"step": step})
    assert store.resolve("answers").number == 3
    store.append("answers", "promoted", "ann", "why", pointing("stable", 2))
    assert [store.resolve(t).number for t in ("answers", "answers@stable", "answers@3")] == [2, 2, 3]
    with pytest.raises(NotFound, match="no alias candidate"):
        store.resolve("answers@candidate")
    with pytest.raises(NotFound, match="answers@1, answers@2, answers@3"):
        store.resolve("answers@9")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a@b", "a#1", "-a", "a b", "x" * 129])
def test_names_that_could_leave_their_place_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="name"):
        open_store(str(tmp_path)).publish(name, dict(FILES))


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a\\b", ""])
def test_paths_that_leave_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BadInput, match="file"):
        open_store(str(tmp_path)).publish("answers", {path: b"x"})


def test_pickles_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    with pytest.raises(BadInput, match=r"pytorch_model\.bin: a format that can run code"):
        store.publish("answers", {**FILES, "pytorch_model.bin": b"x"})
    assert store.names() == [] and store.backend.list("blobs") == []


def test_one_flipped_byte_is_named_by_verify_and_refused_by_fetch(store: Store, tmp_path: Path) -> None:
    version = store.publish("answers", dict(FILES))
    file = version.file("model.safetensors")
    data = bytearray(FILES["model.safetensors"])
    data[4321] ^= 1
    store.backend.replace(blob_key(file.sha256), bytes(data))
    (found,) = store.verify(version)
    assert "answers@1: model.safetensors was changed" in found
    with pytest.raises(StoreError, match=r"answers@1 model\.safetensors") as caught:
        store.fetch(version, tmp_path / "out")
    assert caught.value.fault == "corrupt" and not (tmp_path / "out").exists()
    store.backend.delete(blob_key(file.sha256))
    assert "is gone" in store.verify(version)[0]


def test_a_cached_copy_that_changed_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    store = open_store(str(tmp_path / "store"))
    folder = store.fetch(store.publish("answers", dict(FILES)))
    (folder / "config.json").write_bytes(b'{"a": 2}')
    assert (store.fetch("answers@1") / "config.json").read_bytes() == FILES["config.json"]
    with pytest.raises(Conflict):
        (folder / "config.json").write_bytes(b"")
        store.fetch("answers@1", folder)


def test_files_are_private(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.publish("answers", dict(FILES))
    found = list((tmp_path / "store").rglob("*"))
    assert {p.stat().st_mode & 0o777 for p in found if p.is_file()} == {0o600}
    assert {p.stat().st_mode & 0o777 for p in [*found, tmp_path / "store"] if p.is_dir()} == {0o700}


# --- the log ----------------------------------------------------------------------------------------------------------------


def test_the_state_is_the_last_event_and_the_chain_holds(store: Store) -> None:
    store.publish("answers", dict(FILES))
    state = store.append("answers", "candidate", "ann", "try it", pointing("candidate", 1), version=1, report={"verdict": "SHIP"})
    assert (state.n, state.candidate, state.stable) == (2, 1, None)
    assert open_store(store.uri).state("answers") == state
    assert state.report is not None and store.report("answers", state.report) == {"verdict": "SHIP"}
    raw = [store.backend.read(f"models/answers/log/{n:010d}.json") for n in (1, 2)]
    assert json.loads(raw[1])["prev_sha256"] == hashlib.sha256(raw[0]).hexdigest()
    assert check_chain(store.events("answers"), "answers") == []
    assert store.state("unknown").n == 0


def test_a_decision_on_an_old_state_is_a_conflict(store: Store) -> None:
    store.publish("answers", dict(FILES))
    seen, other = store.state("answers"), open_store(store.uri)
    other.append("answers", "candidate", "bob", "mine first", pointing("candidate", 1))
    with pytest.raises(Conflict, match="mine first"):
        store.append("answers", "promoted", "ann", "mine", pointing("stable", 1), expect_n=seen.n)
    assert store.state("answers").by == "bob"


def test_no_pointer_to_what_is_not_there(store: Store) -> None:
    store.publish("answers", dict(FILES))
    with pytest.raises(NotFound, match="answers@7"):
        store.append("answers", "promoted", "ann", "typo", pointing("stable", 7))
    with pytest.raises(NotFound, match="answers@7"):
        store.append("answers", "canary_step", "ann", "typo", lambda a: replace(a, release={"candidate": 7}))
    with pytest.raises(BadInput, match="never given twice"):
        store.append("answers", "migrated", "ann", "back", lambda a: After())
    assert store.state("answers").n == 1


def test_what_held_at_a_moment(store: Store) -> None:
    store.publish("answers", dict(FILES))
    before = dt.datetime.now(dt.UTC)
    store.append("answers", "promoted", "ann", "first", pointing("stable", 1))
    assert store.state_at("answers", before).stable is None
    assert store.state_at("answers", dt.datetime.now(dt.UTC)).stable == 1


def test_32_writers_race_to_promote_and_exactly_one_wins(store: Store) -> None:
    for step in range(4):
        store.publish("answers", {"model.safetensors": b"%d" % step}, lineage={"step": step})
    expected, start = store.state("answers").n, threading.Barrier(32)

    def promote(writer: int) -> int | None:
        mine = Store(store.backend)
        start.wait()
        try:
            mine.append("answers", "promoted", f"writer-{writer}", "race", pointing("stable", writer % 4 + 1), expect_n=expected)
            return writer
        except Conflict as problem:
            assert "came first" in str(problem)
            return None

    with ThreadPoolExecutor(32) as pool:
        winners = [w for w in pool.map(promote, range(32)) if w is not None]
    state = open_store(store.uri).state("answers")
    assert len(winners) == 1 and state.n == expected + 1
    assert (state.by, state.stable) == (f"writer-{winners[0]}", winners[0] % 4 + 1)


def _append_many(uri: str, start: mp.Barrier, who: int, count: int) -> None:  # type: ignore[valid-type]
    store = open_store(uri)
    start.wait()
    for i in range(count):
        store.append("answers", "canary_step", f"p{who}", str(i), lambda a: replace(a, failures=a.failures + 1), tries=1000)


@pytest.mark.parametrize("each", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_racing_appends_from_8_processes_never_fork(tmp_path: Path, each: int) -> None:
    uri = str(tmp_path / "store")
    store = open_store(uri)
    store.publish("answers", dict(FILES))
    context = mp.get_context("fork")
    barrier = context.Barrier(8)
    workers = [context.Process(target=_append_many, args=(uri, barrier, who, each)) for who in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0] * 8
    events = store.events("answers")
    assert check_chain(events, "answers") == [] and len(events) == 8 * each + 1
    assert [e.after.failures for e in events] == list(range(8 * each + 1))
    assert sorted((e.by, int(e.reason)) for e in events[1:]) == [(f"p{w}", i) for w in range(8) for i in range(each)]
