"""Bytes that survive a power cut: file written, fsynced, named in one step, folder fsynced. Files 0600, folders 0700.

Example:
    >>> make_folder(path.parent)
    >>> create_durably(path, b"{}")        # True; False where the name was taken
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from pathlib import Path

UNFINISHED = ".tmp"  # hidden files with this ending are being written, or were when their writer died


def fsync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` survive a power cut (obstore and Python leave this out)."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Create `folder` and what is missing above it, 0700, each name durable in its parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    fsync_folder(folder.parent)


def write_durably(path: Path, data: bytes | Iterable[bytes], mode: int = 0o600) -> None:
    """Write and fsync one file; the name itself is durable once its folder is fsynced."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        for chunk in (data,) if isinstance(data, bytes) else data:
            view = memoryview(chunk)
            while view:
                view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_durably(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Replace a file as one step: readers see the old or the new bytes, never a mixture."""
    fresh = _fresh(path)
    try:
        write_durably(fresh, data)
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    fsync_folder(path.parent)


def create_durably(path: Path, data: bytes | Iterable[bytes]) -> bool:
    """A new file as one step, its bytes durable before its name is seen; of any number of racing writers exactly one gets True.

    The name is given by a hard link: the only POSIX call that neither replaces nor shows a half-written file.
    """
    fresh = _fresh(path)
    try:
        write_durably(fresh, data)
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    fsync_folder(path.parent)
    return True


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{UNFINISHED}")
