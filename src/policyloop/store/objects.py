"""Storage in a bucket: S3 and what speaks it, Google Cloud Storage, Azure, through obstore's conditional puts.

Address and keys come from the environment, a file or the machine's identity (`keys`), never from a config.

Example:
    >>> Objects("s3://bucket/store").create("a.json", b"{}")
    True
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from policyloop.errors import StoreFault
from policyloop.store.backend import CHUNK, Stat, read_if_there, store_error
from policyloop.store.keys import client_options, config_for

CONFLICTS = 6  # times a create is sent again while others are under way
QUOTA = ("quota", "insufficientstorage", "no space", "toomanybuckets", "entitytoolarge")
PERMISSION = (
    "accessdenied",
    "access denied",
    "forbidden",
    "403",
    "401",
    "invalidaccesskeyid",
    "signaturedoesnotmatch",
    "credential",
)
MISSING = ("nosuchbucket", "nosuchkey", "404")
UNCONDITIONAL = ("notimplemented", "501")
# four tries within about half a minute: a gateway must learn of a dead storage, not hang on it
RETRY: dict[str, Any] = {"max_retries": 4, "retry_timeout": dt.timedelta(seconds=30)}


def open_at(uri: str) -> Objects:
    return Objects(uri)


class Objects:
    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        try:
            options: Any = {"config": config_for(uri), "client_options": client_options(uri), "retry_config": RETRY}
            self.store: Any = from_url(self.uri, **options)
        except (BaseError, ValueError) as problem:
            raise store_error("permission", f"{uri} cannot be opened ({_first_line(problem)})", uri) from problem

    def read(self, key: str) -> bytes:
        with self._told(key):
            return bytes(obstore.get(self.store, key).bytes())

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._told(key):
            size = obstore.head(self.store, key)["size"]
            for start in range(0, size, CHUNK):  # one bounded request each: no time-out has to fit the largest file
                yield bytes(obstore.get_range(self.store, key, start=start, end=min(start + CHUNK, size)))

    def create(self, key: str, data: bytes) -> bool:
        for attempt in range(CONFLICTS):
            with self._told(key):
                try:
                    obstore.put(self.store, key, data, mode="create", use_multipart=False)
                    return True
                except (AlreadyExistsError, PreconditionError):
                    pass
            # a put whose answer was lost is sent again by the client and then finds its own bytes: that is a success
            if (found := read_if_there(self, key)) is not None:
                return found == data
            time.sleep(0.05 * 2**attempt)  # S3 answers 409 while another create is under way, which may yet fail
        raise store_error("network", f"{self.uri}/{key}: conflicting writes without end", self.uri)

    def replace(self, key: str, data: bytes | Path) -> None:
        with self._told(key):
            obstore.put(self.store, key, data)

    def stat(self, key: str) -> Stat | None:
        with self._told(key):
            try:
                found = obstore.head(self.store, key)
            except FileNotFoundError:
                return None
            return Stat(found["size"], found["last_modified"].timestamp())

    def list(self, prefix: str, after: str = "") -> list[str]:
        with self._told(prefix):
            pages = obstore.list(self.store, prefix or None, offset=after or None, chunk_size=1000)
            return sorted(str(entry["path"]) for page in pages for entry in page)

    def folders(self, prefix: str) -> list[str]:
        with self._told(prefix):
            found = obstore.list_with_delimiter(self.store, prefix or None)
            return sorted(str(p).rstrip("/").rpartition("/")[2] for p in found["common_prefixes"])

    def delete(self, key: str) -> None:
        with self._told(key):
            try:
                obstore.delete(self.store, key)
            except FileNotFoundError:
                return

    def clean(self, before: float) -> int:
        return 0  # an object appears whole; parts of broken uploads are the bucket's lifecycle rule's

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as problem:
            raise store_error(fault_of(problem), f"{self.uri}/{key}: {_first_line(problem)}", self.uri) from problem


def fault_of(problem: Exception) -> StoreFault:
    """What kind of failure a storage client reports; where its class does not say, its text does."""
    text = re.sub(r"(?<=[\w\]]):\d+", "", str(problem).casefold())  # a port such as 40301 is no status
    if any(word in text for word in QUOTA) or "507" in text:
        return "quota"
    if isinstance(problem, (PermissionDeniedError, UnauthenticatedError, PermissionError)) or any(w in text for w in PERMISSION):
        return "permission"
    if isinstance(problem, FileNotFoundError) or any(word in text for word in MISSING):
        return "missing"
    if isinstance(problem, NotSupportedError) or any(word in text for word in UNCONDITIONAL):
        return "unconditional"
    return "network"


def _first_line(problem: Exception) -> str:
    """The sentence a person needs: without the client's debug dump below it."""
    return str(problem).partition("\n")[0].strip()[:300] or type(problem).__name__
