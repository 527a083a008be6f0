"""A bundle to object storage: file by file, the manifest last. A broken upload goes on where it stopped.

    <uri>/{every file of the bundle, manifest.json}      uploading.json while it lasts: which files are there whole

Example:
    >>> upload(Path("out/wp"), "s3://models/wp")
    7
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from policyloop.errors import Conflict
from policyloop.export.bundle import MANIFEST
from policyloop.store.backend import Backend, open_backend

PROGRESS = "uploading.json"


def upload(bundle: Path, uri: str, *, force: bool = False, say: Callable[[str], None] = lambda line: None) -> int:
    """How many files were sent; those that an earlier try left whole are not sent again. Errors: Conflict where another bundle lies at
    `uri` and not `force`; StoreError."""
    storage = open_backend(uri.rstrip("/"))
    manifest: dict[str, Any] = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    if storage.stat(MANIFEST) is not None:
        if json.loads(storage.read(MANIFEST))["id"] == manifest["id"]:
            say(f"{uri} holds this bundle already")
            return 0
        if not force:
            raise Conflict(f"{uri} holds another bundle", "another address, or --force", "--to")
        storage.delete(MANIFEST)  # half of one and half of another is no bundle
    done: dict[str, str] = json.loads(storage.read(PROGRESS)) if storage.stat(PROGRESS) is not None else {}
    sent = 0
    for file in manifest["files"]:
        if _there(storage, file, done):
            continue
        storage.replace(file["path"], bundle / file["path"])
        sent += 1
        done[file["path"]] = file["sha256"]
        storage.replace(PROGRESS, json.dumps(done).encode())
        say(f"sent {file['path']} ({file['size'] / 1e6:.1f} MB)")
    storage.replace(MANIFEST, (bundle / MANIFEST).read_bytes())
    storage.delete(PROGRESS)
    return sent


def _there(storage: Backend, file: dict[str, Any], done: dict[str, str]) -> bool:
    """Whether an earlier try sent these very bytes: it wrote so after the last of them, and the size agrees."""
    stat = storage.stat(file["path"]) if done.get(file["path"]) == file["sha256"] else None
    return stat is not None and stat.size == file["size"]
