"""The store: versions in, facts out. `publish` writes bytes, then the manifest; `append` moves what may move, by one conditional put.

    blobs/sha256/<aa>/<digest>                        bytes, shared by all versions that hold them
    <shelf>/<name>/versions/<n:08d>/manifest.json     last and create-only: a version exists exactly when this does
    <shelf>/<name>/log/<n:010d>.json                  the log (`log`): pointer, release state and audit
    <shelf>/<name>/leases/<n:08d>/<holder>.json       who is reading which version until when
    <shelf>/<name>/reports/<sha256>.json              gate and parity reports that events name

Shelves: models, datasets, reward_models; all of one layout.

Example:
    >>> version = open_store("store").publish("answers", Path("bundle"), by="ann", lineage={"run": "demo"})
    >>> store.append("answers", "promoted", "ann", "gate 0.71 against 0.64", lambda a: replace(a, aliases={"stable": version.number}))
"""

from __future__ import annotations

import datetime as dt
import getpass
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from policyloop.errors import BadInput, Conflict, NotFound, StoreError
from policyloop.store.backend import Backend, chunks_of, read_checked, read_if_there, store_error
from policyloop.store.durable import write_durably
from policyloop.store.leases import Lease
from policyloop.store.log import TYPES, After, Change, State, decode, following, key_of
from policyloop.store.manifest import KINDS, File, Version, canonical, check_name, check_path, identity, role_of

Shelf = Literal["models", "datasets", "reward_models"]
Files = Path | Mapping[str, bytes | Path]
FRESH_S = 6 * 3600  # a blob this young is used as it lies; an older one is written again, so that no gc can think it unwanted
GRACE_S = 24 * 3600  # and gc leaves unreferenced blobs this long: publishing has the difference to end in
NOTE = "version.json"  # a fetched folder's own manifest: which version it is
UNSAFE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")  # formats that can run code when loaded


class Store:
    """Versions, logs, leases of one shelf. Cheap to make; nothing is read or written before it is asked for."""

    def __init__(self, backend: Backend, shelf: Shelf = "models", clock: Callable[[], float] = time.time) -> None:
        if shelf not in get_args(Shelf):
            raise BadInput(f"shelf {shelf}", ", ".join(get_args(Shelf)), "the shelf")
        self.backend, self.shelf, self.clock = backend, shelf, clock
        self._manifests: dict[str, Version] = {}
        self._states: dict[str, State] = {}
        self._probed = False

    @property
    def uri(self) -> str:
        return self.backend.uri

    def on(self, shelf: Shelf) -> Store:
        """The same storage, another shelf."""
        return Store(self.backend, shelf, self.clock)

    # --- versions -----------------------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return self.backend.folders(self.shelf)

    def numbers(self, name: str) -> list[int]:
        """The versions that exist, ascending."""
        keys = self.backend.list(f"{self._home(name)}/versions")
        return sorted(int(found[1]) for key in keys if (found := re.search(r"/(\d+)/manifest\.json$", key)))

    def versions(self, name: str) -> list[Version]:
        found = []
        for number in self.numbers(name):
            try:
                found.append(self.version(name, number))
            except NotFound:  # deleted since it was listed
                continue
        return found

    def exists(self, name: str, number: int) -> bool:
        return self.backend.stat(self._manifest_key(name, number)) is not None

    def version(self, name: str, number: int) -> Version:
        """Errors: NotFound (with what there is), StoreError(corrupt), BadInput for a newer schema."""
        key = self._manifest_key(name, number)
        if key not in self._manifests:
            data = read_if_there(self.backend, key)
            if data is None:
                there = ", ".join(f"{name}@{n}" for n in self.numbers(name)[-8:]) or "none"
                raise NotFound(f"{name}@{number} is not in {self.uri}", f"one of its versions ({there})", "the version")
            self._manifests[key] = Version.decode(data, f"{self.uri}/{key}")
        return self._manifests[key]

    def raw_manifest(self, name: str, number: int) -> dict[str, Any]:
        """The manifest as it lies there, whatever its schema."""
        return json.loads(self.backend.read(self._manifest_key(name, number)))

    def rewrite_manifest(self, version: Version) -> None:
        """Only for `verify.migrate`: the same version in this schema."""
        self.backend.replace(self._manifest_key(version.name, version.number), version.encode())

    def tombstone(self, name: str, number: int) -> Version | None:
        """The manifest of a version that retention deleted."""
        key = f"{self._home(name)}/versions/{number:08d}/expired.json"
        data = read_if_there(self.backend, key)
        return None if data is None else Version.decode(data, f"{self.uri}/{key}")

    def resolve(self, text: str) -> Version:
        """`name@3`, `name@stable`, or `name` alone: its stable version, before there is one its newest. Errors: NotFound."""
        name, at, which = text.partition("@")
        state, numbers = self.state(name), self.numbers(name)
        if not numbers:
            there = ", ".join(self.names()[:12]) or "nothing"
            raise NotFound(f"{name} is not in {self.uri}", f"a name of this store ({there})", "the version")
        if which.isdigit():
            return self.version(name, int(which))
        if not at:
            return self.version(name, state.stable or numbers[-1])
        if which not in state.after.aliases:
            known = ", ".join([*state.after.aliases, *(str(n) for n in numbers[-8:])])
            raise NotFound(f"{name} has no alias {which}", f"{name}@ and one of {known}", "the version")
        return self.version(name, state.after.aliases[which])

    def publish(
        self,
        name: str,
        files: Files,
        *,
        by: str | None = None,
        reason: str = "",
        kind: str = "full",
        base: Mapping[str, Any] | None = None,
        lineage: Mapping[str, Any] | None = None,
        evaluation: Mapping[str, Any] | None = None,
        serving: Mapping[str, Any] | None = None,
        checks: Mapping[str, Any] | None = None,
        type: str = "registered",
    ) -> Version:
        """A folder (or paths with bytes) becomes the next version: blobs, then the manifest, then a `registered` event.

        Killed at any moment: either the version is there whole, or only unreferenced blobs are, which gc collects. Publishing the
        same files with the same lineage again gives the version that is there. Errors: BadInput (pickles, names), StoreError.
        """
        if kind not in KINDS:
            raise BadInput(f"kind {kind}", ", ".join(KINDS), "kind")
        self.probe()
        started, by = self.clock(), by or actor()
        listed = tuple(self._put_blob(path, source) for path, source in sorted(_sources(files).items()))
        tree = json.loads(canonical(dict(lineage or {})))
        known = next((v for v in reversed(self.versions(name)) if v.id == identity(listed, tree)), None)
        if known is not None:
            return known
        if self.clock() - started > GRACE_S - FRESH_S:
            raise StoreError("network", f"publishing {name} took too long to be safe from gc", "a faster way to the storage")
        version = Version(
            name,
            0,
            identity(listed, tree),
            listed,
            kind,
            base,
            tree,
            evaluation or {},
            serving or {},
            checks or {},
            {"at": _iso(self.clock()), "by": by, "nonce": uuid.uuid4().hex},
        )
        version = self._put_manifest(version)
        number = version.number
        reason = reason or f"{len(listed)} files, {version.size:,} bytes"
        note: Change = lambda a: replace(a, last=max(a.last, number))  # noqa: E731
        self.append(name, type, by, reason, note, version=number, tries=64)
        return version

    def read(self, version: Version, path: str) -> bytes:
        """One file, checked. Errors: StoreError(corrupt) naming file and version."""
        return b"".join(self._checked(version, version.file(path)))

    def fetch(self, version: Version | str, to: Path | None = None) -> Path:
        """All files in a folder (the cache, or `to`), every byte checked before the folder appears. Errors: StoreError(corrupt)."""
        version = self.resolve(version) if isinstance(version, str) else version
        target = to or cache_root() / "store" / f"{version.name}-{version.number}-{version.id[:16]}"
        if target.exists():
            if not any(_differing(target, version)):
                return target
            if to is not None:
                raise Conflict(f"{to} exists and is not {version}", "a folder that does not exist yet", "the folder")
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            for file in version.files:
                (fresh / file.path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_durably(fresh / file.path, self._checked(version, file))
            write_durably(fresh / NOTE, version.encode())
            try:
                fresh.rename(target)
            except OSError:  # somebody else was faster: theirs was checked as well
                if any(_differing(target, version)):
                    raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return target

    def verify(self, version: Version) -> list[str]:
        """Every stored byte against the manifest: one sentence per file that differs; empty = all is well."""
        wrong = []
        for file in version.files:
            try:
                for _ in self._checked(version, file):
                    pass
            except StoreError as problem:
                if problem.fault not in ("corrupt", "missing"):
                    raise
                wrong.append(
                    f"{version}: {file.path} {'is gone' if problem.fault == 'missing' else 'was changed'} ({problem.given})"
                )
        return wrong

    # --- the log ------------------------------------------------------------------------------------------------------------

    def state(self, name: str) -> State:
        """The last event, which is the state. Errors: StoreError."""
        seen = self._states.get(name, State())
        folder = f"{self._home(name)}/log"
        keys = self.backend.list(folder, after=f"{folder}/{key_of(seen.n)}" if seen.n else "")
        if keys:
            seen = self._states[name] = self._event(name, _number(keys[-1]))
        return seen

    def events(self, name: str, after: int = 0) -> list[State]:
        """All events, or those after number `after`, in order."""
        folder = f"{self._home(name)}/log"
        keys = self.backend.list(folder, after=f"{folder}/{key_of(after)}" if after else "")
        return [self._event(name, _number(key)) for key in keys]

    def state_at(self, name: str, when: dt.datetime) -> State:
        """What held at a moment: the last event not later than `when`."""
        return next((e for e in reversed(self.events(name)) if e.time <= when), State())

    def append(
        self,
        name: str,
        type: str,
        by: str,
        reason: str,
        change: Change | None = None,
        *,
        version: int | None = None,
        report: str | Mapping[str, Any] | None = None,
        expect_n: int | None = None,
        tries: int = 1,
    ) -> State:
        """One event: `change` makes the new `After` from the one before. One conditional put; whoever loses the race gets Conflict.

        `expect_n`: the event the decision was made on; anything newer is a Conflict. `tries` > 1: on a lost race read again and let
        `change` decide again (for what does not depend on the state). `report` is stored and named by its digest.
        Errors: Conflict, NotFound (an alias to no version), BadInput, StoreError(unconditional) where the storage cannot keep a log.
        """
        if type not in TYPES and not re.fullmatch(r"[a-z][a-z_]{0,39}", type):
            raise BadInput(f"event type {type!r}", "lower-case words joined by _", "the type")
        self.probe()
        digest = self.put_report(name, report) if isinstance(report, Mapping) else report
        for _ in range(max(1, tries)):
            before = self.state(name)
            if expect_n is not None and before.n != expect_n:
                break
            after = change(before.after) if change is not None else before.after
            self._admit(name, before.after, after)
            data = following(before, type, by=by, reason=reason, after=after, version=version, report=digest)
            if self.backend.create(f"{self._home(name)}/log/{key_of(before.n + 1)}", data):
                self._states[name] = decode(data, before.n + 1, name)
                return self._states[name]
        latest = self.state(name)
        raise Conflict(
            f"{name} has moved on: event {latest.n} ({latest.type} by {latest.by}, {latest.reason}) came first",
            "a decision made on the state as it is now",
            "read again, then repeat",
        )

    def put_report(self, name: str, report: Mapping[str, Any]) -> str:
        """Store a report (create-only, by its sha256). Returns the digest that events name."""
        data = json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False, default=str).encode()
        digest = hashlib.sha256(data).hexdigest()
        self.backend.create(f"{self._home(name)}/reports/{digest}.json", data)
        return digest

    def report(self, name: str, digest: str) -> dict[str, Any]:
        """A stored report. Errors: StoreError(missing, corrupt)."""
        data = self.backend.read(f"{self._home(name)}/reports/{digest}.json")
        if hashlib.sha256(data).hexdigest() != digest:
            raise store_error("corrupt", f"report {digest[:12]} of {name} was changed", self.uri)
        return json.loads(data)

    # --- leases -------------------------------------------------------------------------------------------------------------

    def lease(self, version: Version, holder: str, seconds: float = 600.0) -> Lease:
        """Say that `holder` reads this version: retention leaves it alone until the lease ends. Take again to renew.

        The log is read after the lease is written: a version whose deletion was announced before is refused (NotFound).
        """
        lease = Lease(version.name, version.number, check_name(holder), self.clock() + seconds)
        self.backend.replace(self._lease_key(lease), lease.encode())
        if version.number in self.state(version.name).after.expiring or not self.exists(version.name, version.number):
            self.release(lease)
            raise NotFound(f"{version} is being deleted", "another version (`policyloop models list`)", "the version")
        return lease

    def release(self, lease: Lease) -> None:
        self.backend.delete(self._lease_key(lease))

    def leases(self, name: str) -> list[Lease]:
        """The leases that have not ended."""
        keys = self.backend.list(f"{self._home(name)}/leases")
        read = (read_if_there(self.backend, key) for key in keys)  # some are given back meanwhile
        found = [Lease.decode(name, data) for data in read if data is not None]
        return [lease for lease in found if lease.until > self.clock()]

    # --- the storage itself -------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Does this storage honour create-only writes? Asked once, before the first write. Errors: StoreError(unconditional)."""
        if self._probed or self.uri in _PROBED:
            return
        key = f"probe/{uuid.uuid4().hex}"
        try:
            with ThreadPoolExecutor(8) as pool:
                winners = sum(pool.map(lambda i: self.backend.create(key, b"%d" % i), range(8)))
            if winners != 1 or self.backend.create(key, b"late"):
                raise store_error(
                    "unconditional",
                    f"{self.uri} ignores create-only writes ({winners} of 8 racing writers were told they won): no log can be kept here",
                    self.uri,
                )
        finally:
            self.backend.delete(key)
        self._probed = True
        _PROBED.add(self.uri)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _home(self, name: str) -> str:
        return f"{self.shelf}/{check_name(name)}"

    def _manifest_key(self, name: str, number: int) -> str:
        return f"{self._home(name)}/versions/{number:08d}/manifest.json"

    def _lease_key(self, lease: Lease) -> str:
        return f"{self._home(lease.name)}/leases/{lease.number:08d}/{lease.holder}.json"

    def _event(self, name: str, n: int) -> State:
        key = f"{self._home(name)}/log/{key_of(n)}"
        return decode(self.backend.read(key), n, f"{self.uri}/{self._home(name)}/log")

    def _checked(self, version: Version, file: File) -> Iterator[bytes]:
        return read_checked(self.backend, blob_key(file.sha256), file.size, file.sha256, f"{version} {file.path}")

    def _admit(self, name: str, before: After, after: After) -> None:
        """What every event must keep: pointers lead to whole versions that stay, and numbers are never given twice."""
        for number in after.pointed:
            if number in after.expiring:
                raise Conflict(f"{name}@{number} is being deleted", "a version that stays", "the version")
            if number not in before.pointed and not self.exists(name, number):
                raise NotFound(f"{name}@{number} is not in {self.uri}", "a version that is there whole", "the version")
        if after.last < before.last:
            raise BadInput(f"last = {after.last}", f"at least {before.last}: numbers are never given twice", "the event")

    def _put_blob(self, path: str, source: bytes | Path) -> File:
        """Bytes under their own digest. What lies there is used when it is young enough that no gc can be after it."""
        digest, size = hashlib.sha256(), 0
        for chunk in chunks_of(source):
            digest.update(chunk)
            size += len(chunk)
        key = blob_key(digest.hexdigest())
        there = self.backend.stat(key)
        if there is None or there.size != size or self.clock() - there.modified > FRESH_S:
            self.backend.replace(key, source)
        return File(path, size, digest.hexdigest(), role_of(path))

    def _put_manifest(self, version: Version) -> Version:
        """Create-only under the next free number."""
        while True:
            numbers = [*self.numbers(version.name), self.state(version.name).after.last]
            version = replace(version, number=max(numbers) + 1)
            if self.backend.create(self._manifest_key(version.name, version.number), version.encode()):
                return version


_PROBED: set[str] = set()


def blob_key(sha256: str) -> str:
    return f"blobs/sha256/{sha256[:2]}/{sha256}"


def actor() -> str:
    """Who acts: POLICYLOOP_ACTOR, else user@host."""
    try:
        return os.environ.get("POLICYLOOP_ACTOR") or f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user without a name
        return f"uid{os.getuid()}@{socket.gethostname()}"


def cache_root() -> Path:
    """Where fetched things are kept: POLICYLOOP_CACHE, else ~/.cache/policyloop."""
    root = os.environ.get("POLICYLOOP_CACHE")
    return Path(root) if root else Path.home() / ".cache" / "policyloop"


def version_in(folder: Path) -> Version | None:
    """Which version a fetched folder holds; None where it came from elsewhere."""
    note = folder / NOTE
    return Version.decode(note.read_bytes(), str(note)) if note.is_file() else None


def _number(key: str) -> int:
    return int(key.rpartition("/")[2].removesuffix(".json"))


def _iso(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="seconds")


def _sources(files: Files) -> dict[str, bytes | Path]:
    """Relative path -> where its bytes are. Errors: BadInput for nothing, a pickle, or a path that leaves the folder."""
    if isinstance(files, Path):
        if not files.is_dir():
            raise NotFound(f"{files} is no folder", "a folder of files", str(files))
        hidden = [p for p in files.rglob("*") if any(part.startswith(".") for part in p.relative_to(files).parts)]
        files = {p.relative_to(files).as_posix(): p for p in files.rglob("*") if p.is_file() and p not in hidden}
    found = {check_path(path): source for path, source in files.items() if path != NOTE}
    unsafe = [path for path in found if path.casefold().endswith(UNSAFE)]
    if unsafe:
        raise BadInput(f"{', '.join(unsafe[:4])}: a format that can run code when it is loaded", "safetensors", "the files")
    if not found:
        raise BadInput("there is no file to publish", "at least one file", "the files")
    return found


def _differing(folder: Path, version: Version) -> Iterator[str]:
    """Paths of a fetched folder that are not as the manifest says."""
    for file in version.files:
        path = folder / file.path
        if not path.is_file() or path.stat().st_size != file.size:
            yield file.path
            continue
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
                yield file.path
