"""Where bytes lie: the same few calls over a folder and over object storage, every failure told apart.

In: a URI (a path, `file://`, `s3://`, `gs://`, `az://`) and keys below it, parts joined by `/`. Out: bytes, or a StoreError whose
`fault` is quota, permission, network, missing, unconditional or corrupt.

Example:
    >>> backend = open_backend("s3://bucket/store")
    >>> backend.create("a/b.json", b"{}"), backend.create("a/b.json", b"[]")
    (True, False)
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from policyloop.errors import BadInput, StoreError, StoreFault

CHUNK = 8 << 20


@dataclass(frozen=True, slots=True)
class Stat:
    """Size in bytes, and when it was last written (seconds since 1970, by the storage's clock)."""

    size: int
    modified: float


class Backend(Protocol):
    """Storage below one URI. Keys are relative, parts joined by `/`; `list` gives them sorted, hidden names left out."""

    uri: str

    def read(self, key: str) -> bytes: ...

    def chunks(self, key: str) -> Iterator[bytes]: ...

    def create(self, key: str, data: bytes) -> bool:
        """Write `data` under a name nobody has yet. False: the name was taken, and what lies there is as it was."""
        ...

    def replace(self, key: str, data: bytes | Path) -> None:
        """Write whole or not at all, over whatever was there. A large file is streamed."""
        ...

    def stat(self, key: str) -> Stat | None: ...

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Every key below the folder `prefix` that sorts after `after`."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """The names of the folders directly below `prefix`."""
        ...

    def delete(self, key: str) -> None:
        """Gone afterwards; already gone is no error."""
        ...

    def clean(self, before: float) -> int:
        """Remove what writers that were killed left half-written before that time. Returns how many."""
        ...


def _lazy(module: str) -> Callable[[str], Backend]:
    def create(uri: str) -> Backend:
        return importlib.import_module(f"policyloop.store.{module}").open_at(uri)

    return create


BACKENDS: dict[str, Callable[[str], Backend]] = {
    "file": _lazy("folder"),
    "s3": _lazy("objects"),
    "gs": _lazy("objects"),
    "az": _lazy("objects"),
}


def scheme_of(uri: str) -> str:
    """`s3` of `s3://...`; `file` where there is none."""
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", uri)
    return found[1].lower() if found else "file"


def is_remote(uri: str) -> bool:
    return scheme_of(uri) != "file"


def open_backend(uri: str) -> Backend:
    """The storage behind a URI; nothing is read or written yet. Errors: BadInput for a scheme that is none of BACKENDS."""
    scheme = scheme_of(uri)
    if scheme not in BACKENDS:
        raise BadInput(f"{uri}: {scheme}:// is no storage", f"a path, {', '.join(f'{s}://' for s in BACKENDS)}", uri)
    return BACKENDS[scheme](uri)


def split(uri: str) -> tuple[Backend, str]:
    """A URI of one object or folder -> its bucket (or container) and the key inside: `s3://bucket/a/b` -> (s3://bucket, a/b)."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return open_backend(f"{scheme}://{bucket}"), "/".join(p for p in key.split("/") if p)


def read_if_there(backend: Backend, key: str) -> bytes | None:
    """The bytes, None where there are none (or none any more)."""
    try:
        return backend.read(key)
    except StoreError as problem:
        if problem.fault != "missing":
            raise
        return None


def read_checked(backend: Backend, key: str, size: int, sha256: str, what: str) -> Iterator[bytes]:
    """The bytes of `key` in chunks; after the last one size and sha256 are checked. Errors: StoreError(corrupt) naming `what`."""
    digest, length = hashlib.sha256(), 0
    for chunk in backend.chunks(key):
        digest.update(chunk)
        length += len(chunk)
        yield chunk
    if length != size or digest.hexdigest() != sha256:
        found = f"{length:,} bytes with sha256 {digest.hexdigest()[:12]}…"
        raise StoreError("corrupt", f"{what} ({key}): {found}", f"{size:,} bytes with sha256 {sha256[:12]}…", backend.uri)


def chunks_of(source: bytes | Path) -> Iterator[bytes]:
    """Bytes as they are, a file in pieces."""
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            yield chunk


ADVICE: dict[StoreFault, str] = {
    "quota": "more room, or `policyloop models gc`",
    "permission": "keys or a folder that may be read and written",
    "network": "a reachable storage (address, proxy, certificate)",
    "missing": "something that exists",
    "unconditional": "storage that honours create-only writes (If-None-Match: *), or a folder with hard links",
    "corrupt": "the bytes as they were written: restore them from a copy",
}


def store_error(fault: StoreFault, given: str, where: str) -> StoreError:
    return StoreError(fault, given, ADVICE[fault], where)


def of_os(problem: OSError, what: str, where: str) -> StoreError:
    """An operating system's error by what a person must do about it."""
    no = problem.errno
    fault: StoreFault = "network"
    if no in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        fault = "quota"
    elif no in (errno.EACCES, errno.EPERM, errno.EROFS):
        fault = "permission"
    elif no in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        fault = "missing"
    return store_error(fault, f"{what}: {problem.strerror or problem}", where)
