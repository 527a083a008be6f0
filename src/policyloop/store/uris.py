"""Files behind URIs, for every place where a path is taken: data, models, second checkpoint destination, export.

A URI of one object or of a folder of objects; what has no scheme is a path and not this file's business. Objects appear whole or not at all.

Example:
    >>> with download("s3://bucket/train.jsonl") as stream: stream.readline()
    >>> mirror({"config.json": b"{}", "manifest.json": b"{}"}, "s3://bucket/runs/demo/00000020")   # the manifest goes last
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, cast

from policyloop.errors import Conflict, NotFound
from policyloop.store.backend import is_remote, split
from policyloop.store.durable import write_durably
from policyloop.store.registry import cache_root

__all__ = ["download", "exists", "fetch_folder", "is_folder", "is_remote", "list_files", "mirror", "upload"]

IN_MEMORY = 32 << 20
LAST = "manifest.json"  # a folder of objects that has one is whole exactly when it is there


def download(uri: str) -> IO[bytes]:
    """The object's bytes as a seekable stream; larger ones lie in a temporary file. Errors: NotFound, StoreError."""
    backend, key = split(uri)
    if not key or backend.stat(key) is None:
        raise NotFound(f"{uri} does not exist", "an existing object", uri)
    stream = cast(IO[bytes], tempfile.SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115 - the caller closes it
    for chunk in backend.chunks(key):
        stream.write(chunk)
    stream.seek(0)
    return stream


def upload(uri: str, source: bytes | Path, force: bool = False) -> None:
    """A new object; an existing one is only replaced with `force`. Errors: Conflict, StoreError."""
    backend, key = split(uri)
    if not force and backend.stat(key) is not None:
        raise Conflict(f"{uri} exists already", "another name, or --force", uri)
    backend.replace(key, source)


def exists(uri: str) -> bool:
    backend, key = split(uri)
    return (bool(key) and backend.stat(key) is not None) or is_folder(uri)


def is_folder(uri: str) -> bool:
    backend, key = split(uri)
    return bool(backend.list(key))


def list_files(uri: str, suffixes: tuple[str, ...]) -> list[str]:
    """All objects below with one of the suffixes, sorted; hidden ones left out."""
    backend, key = split(uri)
    found = [k for k in backend.list(key) if k.removesuffix(".gz").lower().endswith(suffixes)]
    hidden = [k for k in found if any(part.startswith(".") for part in k[len(key) :].split("/"))]
    return [f"{backend.uri}/{k}" for k in found if k not in hidden]


def mirror(files: Mapping[str, bytes | Path], uri: str, resume: bool = False) -> None:
    """A folder of objects, the manifest last. `resume`: what lies there already with the right size is not sent again."""
    backend, key = split(uri)
    for name in sorted(files, key=lambda name: (name == LAST, name)):
        source, target = files[name], f"{key}/{name}" if key else name
        there = backend.stat(target) if resume and name != LAST else None
        if there is None or there.size != (len(source) if isinstance(source, bytes) else source.stat().st_size):
            backend.replace(target, source)


def fetch_folder(uri: str) -> Path:
    """All objects below `uri` in a cached folder; fetched again when one of them changed. Errors: NotFound, StoreError."""
    backend, key = split(uri)
    keys = backend.list(key)
    if not keys:
        raise NotFound(f"{uri} holds nothing", "the URI of a folder with files", uri)
    stats = [backend.stat(k) for k in keys]
    state = hashlib.sha256(repr([uri, keys, stats]).encode()).hexdigest()[:16]
    target = cache_root() / "uris" / f"{uri.rstrip('/').rpartition('/')[2]}-{state}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        for k in keys:
            path = fresh / k[len(key) :].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, backend.chunks(k))
        if not target.is_dir():
            fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target
