"""Storage in a folder: plain POSIX calls, durable before visible. Works on any file system with hard links (ext4, xfs, btrfs, zfs, NFS).

Example:
    >>> Folder(Path("/srv/store")).create("a.json", b"{}")
    True
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from policyloop.store.backend import Stat, chunks_of, of_os, store_error
from policyloop.store.durable import UNFINISHED, create_durably, make_folder, replace_durably


def open_at(uri: str) -> Folder:
    return Folder(Path(uri[7:] if uri.lower().startswith("file://") else uri).expanduser())


class Folder:
    def __init__(self, root: Path) -> None:
        self.root, self.uri = root.absolute(), str(root)

    def read(self, key: str) -> bytes:
        with self._told(key):
            return self._path(key).read_bytes()

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._told(key):
            yield from chunks_of(self._path(key))

    def create(self, key: str, data: bytes) -> bool:
        with self._told(key):
            path = self._path(key)
            make_folder(path.parent)
            try:
                return create_durably(path, data)
            except OSError as problem:
                if problem.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS) and os.access(path.parent, os.W_OK):
                    raise store_error("unconditional", f"{path.parent} has no hard links", self.uri) from problem
                raise

    def replace(self, key: str, data: bytes | Path) -> None:
        with self._told(key):
            path = self._path(key)
            make_folder(path.parent)
            replace_durably(path, chunks_of(data))

    def stat(self, key: str) -> Stat | None:
        with self._told(key):
            try:
                found = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return Stat(found.st_size, found.st_mtime)

    def list(self, prefix: str, after: str = "") -> list[str]:
        with self._told(prefix):
            found = (f"{prefix}/{name}" if prefix else name for name in _below(self._path(prefix), ""))
            return sorted(key for key in found if key > after)

    def folders(self, prefix: str) -> list[str]:
        with self._told(prefix):
            try:
                with os.scandir(self._path(prefix)) as entries:
                    return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
            except FileNotFoundError:
                return []

    def delete(self, key: str) -> None:
        with self._told(key):
            self._path(key).unlink(missing_ok=True)

    def clean(self, before: float) -> int:
        with self._told(""):
            left = [p for p in self.root.rglob(f".*{UNFINISHED}") if p.stat().st_mtime < before]
            for path in left:
                path.unlink(missing_ok=True)
            return len(left)

    def _path(self, key: str) -> Path:
        return self.root / key if key else self.root

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise of_os(problem, f"{self.root / key}", self.uri) from problem


def _below(folder: Path, prefix: str) -> Iterator[str]:
    """Names of all files below, relative, hidden ones (half-written) left out; a folder that goes meanwhile is empty."""
    try:
        with os.scandir(folder) as entries:
            listed = [e for e in entries if not e.name.startswith(".")]
    except FileNotFoundError:
        return
    for entry in listed:
        if entry.is_dir():
            yield from _below(folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}"
