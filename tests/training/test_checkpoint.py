"""A checkpoint is whole or not there: order, verification, retention, full disks, background writes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from policyloop.errors import StoreError
from policyloop.training.checkpoint import Checkpoints, verify, write_folder

FILES = {"state.json": b"{}", "policy/adapter.bin": b"\x01" * 100}


def test_newest_is_by_number_not_by_name(tmp_path: Path) -> None:
    """F09: checkpoint-10000 is newer than checkpoint-9900."""
    store = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    for step in (500, 9900, 10000):
        store.save(step, FILES)
    assert [c.step for c in store.all()] == [10000]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00010000"]


def test_numbers_beyond_the_padding_still_order(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep_last=3)
    for step in (99_999_999, 100_000_000):
        store.save(step, FILES)
    latest = store.latest()
    assert latest is not None and latest.step == 100_000_000


@pytest.mark.parametrize("harm", ["no manifest", "short file", "flipped byte", "missing file", "half a manifest", "renamed"])
def test_a_harmed_checkpoint_is_never_picked_up(tmp_path: Path, harm: str) -> None:
    store = Checkpoints(tmp_path, keep_last=5)
    store.save(1, FILES)
    store.save(2, FILES)
    newest = tmp_path / "00000002"
    if harm == "no manifest":
        (newest / "manifest.json").unlink()
    elif harm == "short file":
        os.truncate(newest / "policy/adapter.bin", 50)
    elif harm == "flipped byte":
        (newest / "policy/adapter.bin").write_bytes(b"\x01" * 99 + b"\x02")
    elif harm == "missing file":
        (newest / "state.json").unlink()
    elif harm == "half a manifest":
        os.truncate(newest / "manifest.json", 20)
    else:
        newest.rename(tmp_path / "00000003")
    latest = store.latest()
    assert latest is not None and latest.step == 1


def test_best_and_last_stay(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, keep_last=1, keep_best=1)
    for step, score in ((1, 0.1), (2, 0.9), (3, 0.5), (4, 0.9), (5, 0.2)):
        store.save(step, FILES, score)
    assert [c.step for c in store.all()] == [2, 5]
    best = store.best()
    assert best is not None and best.step == 2


def test_full_disk_keeps_the_previous_one_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F10: ENOSPC in the middle of a file."""
    store = Checkpoints(tmp_path, keep_last=1)
    store.save(1, FILES)
    real, written = os.write, 0

    def write(fd: int, data: memoryview) -> int:
        nonlocal written
        written += len(data)
        if written > 60:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StoreError, match=r"is full: the checkpoint needs 102 bytes") as caught:
        store.save(2, FILES)
    assert caught.value.fault == "quota"
    assert [p.name for p in tmp_path.iterdir()] == ["00000001"]
    assert verify(tmp_path / "00000001") is not None


def test_background_write_is_a_snapshot_and_its_failure_surfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Checkpoints(tmp_path, asynchronous=True)
    store.save(1, FILES)
    store.wait()
    latest = store.latest()
    assert latest is not None and latest.files() == FILES

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    store.save(2, FILES)
    with pytest.raises(StoreError, match="cannot be written"):
        store.wait()


def test_second_destination_gets_a_copy_and_may_fail(tmp_path: Path) -> None:
    events: list[str] = []
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    store = Checkpoints(tmp_path / "a", second=tmp_path / "b", on_event=lambda kind, info: events.append(kind))
    store.save(1, FILES)
    assert verify(tmp_path / "b" / "00000001") is not None and events == []
    store.second = blocked / "inside"
    store.save(2, FILES)
    assert events == ["note"] * 3
    latest = store.latest()
    assert latest is not None and latest.step == 2


def test_manifest_lists_every_file(tmp_path: Path) -> None:
    path = write_folder(tmp_path, "00000007", FILES, {"step": 7, "score": None})
    manifest = json.loads((path / "manifest.json").read_text())
    assert [f["path"] for f in manifest["files"]] == sorted(FILES)
    assert (path.stat().st_mode & 0o077) == 0
