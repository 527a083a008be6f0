"""The one seam between tasks and storage: a path or URI (`s3://`, `gs://`, `az://`) in, bytes out.

Example:
    >>> with open_bytes("train.jsonl") as stream: stream.readline()
    b'{"question": "What is 2+3?", "answer": "5"}\\n'
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from policyloop.errors import BadInput, Conflict, NotFound
from policyloop.store import uris
from policyloop.store.backend import is_remote


def open_bytes(uri: str) -> IO[bytes]:
    """The file's bytes as a seekable stream; `.gz` is unpacked on the way."""
    if is_remote(uri):
        stream = uris.download(uri)
        return cast(IO[bytes], gzip.open(stream, "rb")) if uri.endswith(".gz") else stream
    path = local(uri)
    try:
        return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"{uri} does not exist", f"an existing file ({_neighbours(path)})", uri) from None
    except (IsADirectoryError, PermissionError) as error:
        raise BadInput(f"{uri} cannot be read ({error.strerror})", "a readable file", uri) from None


@contextmanager
def create_bytes(uri: str, force: bool = False) -> Iterator[IO[bytes]]:
    """A new file that appears whole or not at all; an existing one is only replaced with `force`."""
    if is_remote(uri):
        with tempfile.NamedTemporaryFile() as written:
            yield cast(IO[bytes], written)
            written.flush()
            uris.upload(uri, Path(written.name), force)
        return
    path = local(uri)
    if path.exists() and not force:
        raise Conflict(f"{uri} exists already", "another name, or --force", uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def is_folder(uri: str) -> bool:
    return uris.is_folder(uri) if is_remote(uri) else local(uri).is_dir()


def exists(uri: str) -> bool:
    return uris.exists(uri) if is_remote(uri) else local(uri).exists()


def list_files(uri: str, suffixes: tuple[str, ...]) -> list[str]:
    """All files below a folder with one of the suffixes, sorted; hidden files and folders left out."""
    if is_remote(uri):
        return uris.list_files(uri, suffixes)
    root = local(uri)
    found = (p for p in root.rglob("*") if p.is_file() and p.name.removesuffix(".gz").lower().endswith(suffixes))
    return sorted(str(p) for p in found if not any(part.startswith(".") for part in p.relative_to(root).parts))


def local(uri: str) -> Path:
    """The local path behind `uri`."""
    return Path(uri[len("file://") :] if uri.lower().startswith("file://") else uri).expanduser()


def _neighbours(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist either"
    names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))[:6]
    return f"in {folder}: {', '.join(names) or 'nothing'}"
