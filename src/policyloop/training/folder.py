"""The run folder: where a run writes down what it does, so that a kill at any moment loses nothing that was said to be saved.

    config.yaml  manifest.json  metrics.jsonl  samples/<step:08d>.jsonl  rollouts/<step:08d>.parquet  events.jsonl  checkpoints/  report.html

Lines are appended and fsynced one by one; `cut` takes metrics, samples, rollouts and step-bound events back to a checkpoint's step, and drops a
half-written last line.

Example:
    >>> folder = RunFolder.create(Path("runs/a"), config={"seed": 0}, manifest={})
    >>> folder.metrics({"step": 1, "reward/mean": 0.5})
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml

from policyloop.errors import BadInput, Conflict
from policyloop.store.durable import fsync_folder, replace_durably


class RunFolder:
    """One run's files. Only one process may write to it (a lock that dies with the process); `writes` False: another rank's, read only."""

    def __init__(self, path: Path, writes: bool = True) -> None:
        self.path, self.writes = path, writes
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], manifest: Mapping[str, Any]) -> RunFolder:
        """A fresh run. Errors: BadInput when the folder already holds one (F09: never mix two runs' checkpoints)."""
        if (path / "manifest.json").exists() or (path / "checkpoints").exists():
            raise BadInput(f"{path} already holds a run", "--resume auto to go on with it, or another folder", "--run")
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        folder.lock()
        try:
            folder.write_config(config)
            replace_durably(path / "manifest.json", json.dumps(manifest, indent=1, ensure_ascii=False, default=str).encode())
        except BaseException:
            folder.unlock()
            raise
        return folder

    def lock(self) -> None:
        """Errors: Conflict when another process is writing here."""
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            self.unlock()
            raise Conflict(f"another process is training in {self.path}", "one process per run folder", "--run") from problem

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """A run that could not begin leaves nothing; what else lies in the folder stays."""
        if self.writes:
            for name in ("manifest.json", "config.yaml", ".lock"):
                (self.path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: it is not ours alone
                self.path.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        replace_durably(self.path / "config.yaml", text.encode())

    def manifest(self) -> dict[str, Any]:
        return json.loads((self.path / "manifest.json").read_bytes())

    def metrics(self, row: Mapping[str, float]) -> None:
        if self.writes:
            append(self.path / "metrics.jsonl", row)

    def event(self, kind: str, step: int, **info: Any) -> None:
        if not self.writes:
            return
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        append(self.path / "events.jsonl", {"at": now, "step": step, "kind": kind, **info})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """One step's groups, one line each, as one step on disk."""
        if not self.writes:
            return
        (self.path / "samples").mkdir(exist_ok=True)
        lines = "".join(json.dumps(finite(row), ensure_ascii=False) + "\n" for row in rows)
        replace_durably(self.path / "samples" / f"{step:08d}.jsonl", lines.encode("utf-8", "surrogatepass"))

    def rollouts(self, step: int, data: bytes) -> None:
        """One step's answers as Parquet (`rollout.save`)."""
        (self.path / "rollouts").mkdir(exist_ok=True)
        replace_durably(self.path / "rollouts" / f"{step:08d}.parquet", data)

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """Lines of metrics.jsonl or events.jsonl; a half-written last line is not a line."""
        path = self.path / name
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            try:
                row = json.loads(line) if line else None
            except ValueError:
                continue
            if isinstance(row, dict):
                yield row

    def cut(self, step: int) -> None:
        """Back to `step`: later metrics, samples, rollouts and events go, so that a resumed run writes them as if nothing had happened."""
        if not self.writes:
            return
        for name in ("metrics.jsonl", "events.jsonl"):
            kept = [row for row in self.rows(name) if row.get("step", 0) <= step]
            if (self.path / name).exists():
                data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept)
                replace_durably(self.path / name, data.encode())
        for kept_in in (self.path / "samples", self.path / "rollouts"):
            for path in kept_in.glob("[0-9]*"):
                if int(path.stem) > step:
                    path.unlink()
            if kept_in.exists():
                fsync_folder(kept_in)


def append(path: Path, row: Mapping[str, Any]) -> None:
    """One line, on disk before this returns."""
    data = json.dumps(finite(row), ensure_ascii=False).encode() + b"\n"
    fresh = not path.exists()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    if fresh:
        fsync_folder(path.parent)


def finite(value: Any) -> Any:
    """JSON has no NaN: not-a-number and infinity are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value
