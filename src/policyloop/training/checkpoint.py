"""Checkpoints: a mapping of file names to bytes goes in, a folder that is either whole or not there comes out.

    <root>/<step:08d>/{policy/..., optimizer/..., state.json, manifest.json}

Order of a save: temporary folder -> every file written and fsynced -> manifest (sizes, sha256) written last -> folders fsynced ->
rename -> parent fsynced -> read back and verified -> only then older ones may go. A folder without a manifest, or whose bytes
differ from it, is never picked up.

Example:
    >>> store = Checkpoints(run / "checkpoints", keep_last=2)
    >>> store.save(20, {"state.json": b"{}"}, score=0.7)
    >>> store.latest().step
    20
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyloop.errors import StoreError
from policyloop.store.durable import fsync_folder, write_durably
from policyloop.store.uris import is_remote, mirror

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One whole, verified checkpoint."""

    path: Path
    step: int
    score: float | None

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def names(self) -> list[str]:
        return [f["path"] for f in json.loads(self.read(MANIFEST))["files"]]

    def files(self) -> dict[str, bytes]:
        return {name: self.read(name) for name in self.names()}


class Checkpoints:
    """The checkpoints of one run. `keep_last` newest and `keep_best` best by score stay; the only good one always does."""

    def __init__(
        self,
        root: Path,
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        higher_is_better: bool = True,
        second: Path | str | None = None,
        asynchronous: bool = False,
        on_event: Callable[[str, dict[str, Any]], None] = lambda kind, info: None,
        writes: bool = True,
    ) -> None:
        self.root, self.second, self.writes = root, second, writes
        self.keep_last, self.keep_best, self.higher_is_better = max(1, keep_last), keep_best, higher_is_better
        self.asynchronous, self.on_event = asynchronous, on_event
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        root.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, files: Mapping[str, bytes], score: float | None = None) -> None:
        """Save `files` as the checkpoint of `step`. The bytes are the snapshot, so an asynchronous write races with nothing.

        Errors: StoreError (quota, permission) with the previous checkpoint intact; an earlier background failure surfaces here.
        """
        self.wait()
        if not self.writes:  # another rank of the run does
            return
        if not self.asynchronous:
            self._save(step, files, score)
            return

        def work() -> None:
            try:
                self._save(step, files, score)
            except BaseException as problem:
                self._failure = problem

        self._thread = threading.Thread(target=work, name="checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write in flight; raise what went wrong in it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def all(self) -> list[Checkpoint]:
        """Every verified checkpoint, by step as a number (10000 comes after 9900)."""
        found = (self._open(p) for p in self.root.iterdir() if p.is_dir() and p.name.isdigit())
        return sorted((c for c in found if c is not None), key=lambda c: c.step)

    def latest(self) -> Checkpoint | None:
        return next(reversed(self.all()), None)

    def best(self) -> Checkpoint | None:
        scored = [c for c in self.all() if c.score is not None]
        return min(scored, key=self._rank) if scored else None

    def set_aside(self, after: int) -> None:
        """Checkpoints later than `after` move to `aside/` beside the root: kept for whoever looks into them, picked up by nothing."""
        aside = self.root.with_name("aside")
        for checkpoint in self.all() if self.writes else ():
            if checkpoint.step > after:
                aside.mkdir(exist_ok=True)
                shutil.rmtree(aside / checkpoint.path.name, ignore_errors=True)
                os.rename(checkpoint.path, aside / checkpoint.path.name)
        fsync_folder(self.root)

    def _rank(self, checkpoint: Checkpoint) -> tuple[float, int]:
        """Best first; of equals the earlier (it reached the score with less training)."""
        score = checkpoint.score or 0.0
        return (-score if self.higher_is_better else score, checkpoint.step)

    def _save(self, step: int, files: Mapping[str, bytes], score: float | None) -> None:
        try:
            path = write_folder(self.root, f"{step:08d}", files, {"step": step, "score": score})
        except OSError as problem:
            raise explain(problem, self.root, sum(map(len, files.values()))) from problem
        if verify(path) is None:
            shutil.rmtree(path, ignore_errors=True)
            raise StoreError("corrupt", f"checkpoint {path} does not read back as it was written", "a disk that keeps its bytes")
        if self.second is not None:
            self._copy(step, files, score)
        self._expire()

    def _copy(self, step: int, files: Mapping[str, bytes], score: float | None, tries: int = 3) -> None:
        """The second destination (a folder or a URI) is redundancy: tried again with back-off, and its failure is an event, not the end."""
        assert self.second is not None
        name, about = f"{step:08d}", {"step": step, "score": score}
        for attempt in range(tries):
            try:
                if is_remote(str(self.second)):
                    mirror({**files, MANIFEST: manifest_of(files, about)}, f"{str(self.second).rstrip('/')}/{name}")
                else:
                    Path(self.second).mkdir(parents=True, exist_ok=True)
                    write_folder(Path(self.second), name, files, about)
                return
            except (OSError, StoreError) as problem:
                self.on_event("note", {"text": f"second destination {self.second}: {problem}", "attempt": attempt + 1})
                time.sleep(0.1 * 2**attempt)

    def _open(self, path: Path) -> Checkpoint | None:
        manifest = verify(path)
        return None if manifest is None else Checkpoint(path, int(manifest["step"]), manifest["score"])

    def _expire(self) -> None:
        good = self.all()
        scored = sorted((c for c in good if c.score is not None), key=self._rank)
        keep = {c.step for c in good[-self.keep_last :]} | {c.step for c in scored[: self.keep_best]}
        for checkpoint in good:
            if checkpoint.step not in keep:
                shutil.rmtree(checkpoint.path, ignore_errors=True)


def write_folder(root: Path, name: str, files: Mapping[str, bytes], about: Mapping[str, Any]) -> Path:
    """Write a folder as one step: everything under a temporary name, the manifest last, then the rename."""
    for stale in root.glob(f".{name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    work, final = root / f".{name}.{os.getpid()}", root / name
    try:
        work.mkdir(mode=0o700)
        for path, data in files.items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            write_durably(work / path, data)
        write_durably(work / MANIFEST, manifest_of(files, about))
        for folder in {(work / path).parent for path in files} | {work}:
            fsync_folder(folder)
        if final.exists():
            shutil.rmtree(final)
        os.rename(work, final)
    except OSError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    fsync_folder(root)
    return final


def manifest_of(files: Mapping[str, bytes], about: Mapping[str, Any]) -> bytes:
    """What a checkpoint's manifest says of its files."""
    listed = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in sorted(files.items())
    ]
    return json.dumps({"schema": SCHEMA, **about, "files": listed}, indent=1).encode()


def verify(path: Path) -> dict[str, Any] | None:
    """The manifest when every byte is as it says, else None."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        for entry in manifest["files"]:
            data = (path / entry["path"]).read_bytes()
            if len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                return None
        return manifest if manifest["schema"] == SCHEMA and int(path.name) == manifest["step"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def explain(problem: OSError, root: Path, needed_bytes: int) -> StoreError:
    """Tell a full disk from a forbidden one, with the bytes that were needed and the bytes that are free."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(root).free
        given = f"the disk under {root} is full: the checkpoint needs {needed_bytes:,} bytes, {free:,} are free"
        return StoreError("quota", given, "more room or a smaller training.keep_last; the previous checkpoint is intact")
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError("permission", f"{root} cannot be written ({problem.strerror})", "a folder of your own")
    return StoreError("missing", f"the checkpoint could not be written under {root} ({problem})")
