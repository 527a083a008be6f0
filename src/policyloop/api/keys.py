"""API keys: who is asking, and what that key may do. The file holds hashes; a key itself is shown once, when it is made.

In: a JSON file `{"keys": [{"name", "sha256", "scopes", "models", "requests_per_minute", "tokens_per_minute"}]}` and a bearer token.
Out: a `Key`. Without a file everybody may ask (infer, feedback) and nobody may do anything else.

A key is 256 random bits, so its plain SHA-256 cannot be searched; a lookup by digest tells a guesser nothing through its time.

Example:
    >>> token = KeyFile(Path("keys.json")).add("team-a", ["infer"], ["arith"])
    >>> KeyFile(Path("keys.json")).find(token).may("infer", "arith")
    True
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from policyloop.config import build
from policyloop.errors import BadInput, Denied, NotFound, Unauthenticated
from policyloop.types import settings

Scope = Literal["infer", "feedback", "label", "promote", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
PREFIX = "pl-"
EVERY = "*"


@settings
class Key:
    """`models`: names it may ask, `*` = any. Limits: null = none."""

    name: str
    sha256: str
    scopes: tuple[Scope, ...] = ("infer",)
    models: tuple[str, ...] = (EVERY,)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def may(self, scope: Scope, model: str | None = None) -> bool:
        return scope in self.scopes and (model is None or EVERY in self.models or model in self.models)

    def need(self, scope: Scope, model: str | None = None) -> None:
        """Errors: Denied, Unauthenticated where nobody has said who they are."""
        if self.may(scope, model):
            return
        if self is ANYBODY:
            raise Unauthenticated("this needs an API key", f"a key with scope {scope} as `Authorization: Bearer ...`")
        if scope not in self.scopes:
            raise Denied(f"key {self.name} has no scope {scope}", f"a key with scope {scope}")
        raise Denied(f"key {self.name} may not use model {model}", ", ".join(self.models))


ANYBODY = Key(name="anybody", sha256="", scopes=("infer", "feedback"))


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: tuple[int, int]
    by_digest: dict[str, Key]


class KeyFile:
    """Read again whenever it changes, so that a key is taken away without a restart. None = no file, everybody is `anybody`."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read = _Read((0, 0), {})
        if path is not None and path.exists():
            self._fresh()

    def find(self, token: str | None) -> Key:
        """Errors: Unauthenticated."""
        if self.path is None:
            return ANYBODY
        found = self._fresh().by_digest.get(digest(token)) if token else None
        if found is None:
            raise Unauthenticated("unknown API key" if token else "no API key", "a valid key as `Authorization: Bearer ...`")
        return found

    def every(self) -> list[Key]:
        return list(self._fresh().by_digest.values())

    def add(
        self,
        name: str,
        scopes: Sequence[str] = ("infer",),
        models: Sequence[str] = (EVERY,),
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
    ) -> str:
        """The new key itself, which is kept nowhere. Errors: BadInput for a name that is taken or a scope that is none."""
        known = self.every()
        if any(key.name == name for key in known):
            raise BadInput(f"key {name} is there already", "another name", "the name")
        if odd := [scope for scope in scopes if scope not in SCOPES]:
            raise BadInput(f"scope {odd[0]}", ", ".join(SCOPES), "--scope")
        token = PREFIX + secrets.token_urlsafe(32)
        held = cast(tuple[Scope, ...], tuple(scopes))
        self._write(
            [
                *known,
                Key(
                    name=name,
                    sha256=digest(token),
                    scopes=held,
                    models=tuple(models),
                    requests_per_minute=requests_per_minute,
                    tokens_per_minute=tokens_per_minute,
                ),
            ]
        )
        return token

    def remove(self, name: str) -> None:
        known = self.every()
        kept = [key for key in known if key.name != name]
        if len(kept) == len(known):
            raise NotFound(f"no key {name}", ", ".join(key.name for key in known) or "none are there", "the name")
        self._write(kept)

    def _fresh(self) -> _Read:
        assert self.path is not None
        with self._lock:
            try:
                stat = self.path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                if stamp != self._read.stamp:
                    self._read = _Read(stamp, {key.sha256: key for key in _parsed(self.path)})
            except FileNotFoundError:
                self._read = replace(self._read, stamp=(0, 0), by_digest={})
            return self._read

    def _write(self, keys: Sequence[Key]) -> None:
        assert self.path is not None
        text = json.dumps({"keys": [asdict(key) for key in keys]}, indent=1, ensure_ascii=False) + "\n"
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            fresh.replace(self.path)
        except OSError as problem:
            raise BadInput(
                f"{self.path} cannot be written ({problem})", "a file in a folder that exists", "the key file"
            ) from problem


def digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _parsed(path: Path) -> list[Key]:
    """Errors: BadInput; a file that cannot be read lets nobody in."""
    try:
        tree: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = tree["keys"]
    except (ValueError, KeyError, TypeError) as problem:
        raise BadInput(f"{path} is no key file ({problem})", '{"keys": [...]}', str(path)) from problem
    return [build(Key, row, f"keys[{i}]") for i, row in enumerate(rows)]
