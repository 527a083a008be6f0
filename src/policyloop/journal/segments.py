"""Segments: one line per row on a local disk, each with its checksum, so that a torn tail is seen and nothing before it is lost.

    <folder>/<writer>/lock               held while that process lives
    <folder>/<writer>/<n:08d>.open       being written
    <folder>/<writer>/<n:08d>.sealed     whole, waits to be shipped

In: rows as `(kind, mapping)`, kind `records` or `feedback`. Out: the same rows. Line: crc32 in hex, blank, JSON, newline.

Example:
    >>> line = encode("feedback", {"request_id": "r1", "kind": "thumb", "value": 1.0})
    >>> decode(line)
    ('feedback', {'request_id': 'r1', 'kind': 'thumb', 'value': 1.0})
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import socket
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from policyloop.store.durable import fsync_folder, make_folder

Row = tuple[str, dict[str, Any]]


def encode(kind: str, row: dict[str, Any]) -> bytes:
    body = json.dumps([kind, _finite(row)], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(line: bytes) -> Row | None:
    """None for a line that is not whole."""
    head, _, body = line.rstrip(b"\n").partition(b" ")
    try:
        if not line.endswith(b"\n") or int(head, 16) != zlib.crc32(body):
            return None
        kind, row = json.loads(body)
    except ValueError:
        return None
    return kind, row


def rows_of(path: Path) -> Iterator[Row]:
    """Every whole row; a torn or damaged line is passed over, the ones after it are read."""
    with path.open("rb") as stream:
        for line in stream:
            if (row := decode(line)) is not None:
                yield row


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value


class Drawer:
    """The segments of one writer: append, seal, list what waits. One process holds it at a time."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder, self._lock = folder, lock
        numbers = [int(p.stem) for p in folder.iterdir() if p.stem.isdigit()]
        self.number = max(numbers, default=0)
        self._fd: int | None = None
        self.bytes = 0

    @staticmethod
    def create(root: Path) -> Drawer:
        """A new drawer of this process; its name appears when its lock is held."""
        name = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        hidden, folder = root / f".{name}", root / name
        make_folder(root)
        hidden.mkdir(mode=0o700)
        lock = _try_lock(hidden)
        assert lock is not None  # nobody else knows the name
        hidden.rename(folder)
        fsync_folder(root)
        return Drawer(folder, lock)

    @staticmethod
    def left_behind(root: Path) -> Iterator[Drawer]:
        """Drawers whose process is gone, taken over: what it was writing is sealed as it stands."""
        for folder in sorted(root.iterdir()) if root.exists() else ():
            if folder.is_dir() and folder.name[0] != "." and (lock := _try_lock(folder)) is not None:
                drawer = Drawer(folder, lock)
                for path in folder.glob("*.open"):
                    path.rename(path.with_suffix(".sealed"))
                yield drawer

    def append(self, lines: bytes, fsync: bool) -> None:
        """On disk when this returns (with `fsync`, also after a power cut). Errors: OSError, with nothing half-written behind it."""
        if self._fd is None:
            self.number += 1
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._fd, self.bytes = os.open(self._open_path, flags, 0o600), 0
            fsync_folder(self.folder)
        try:
            view = memoryview(lines)
            while view:
                view = view[os.write(self._fd, view) :]
            if fsync:
                os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self.bytes)  # a full disk: the part that went in was acknowledged to nobody
            raise
        self.bytes += len(lines)

    def seal(self) -> None:
        if self._fd is not None:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = None
            self._open_path.rename(self._open_path.with_suffix(".sealed"))
            fsync_folder(self.folder)

    def waiting(self) -> list[Path]:
        return sorted(self.folder.glob("*.sealed"))

    def close(self) -> None:
        """Give it back; an empty one goes."""
        self.seal()
        if not self.waiting():
            (self.folder / "lock").unlink(missing_ok=True)
            with suppress(OSError):  # somebody looked in: it goes next time
                self.folder.rmdir()
        os.close(self._lock)

    @property
    def _open_path(self) -> Path:
        return self.folder / f"{self.number:08d}.open"


def _try_lock(folder: Path) -> int | None:
    try:
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    if not (folder / "lock").exists():  # its holder closed it between our open and our lock
        os.close(fd)
        return None
    return fd
