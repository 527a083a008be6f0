"""A version: what its manifest says. Immutable once written; a version exists exactly when its manifest does.

    models/<name>/versions/<n>/manifest.json =
    {schema, name, number, id = sha256(files + lineage), kind, base, files [{path, size, sha256, role}], lineage {run, config, data, parent,
     reward_models, code, step, seed}, evaluation {suite: {metric: {value, n, interval}}}, serving {template, eos_ids, sampling, parser,
     golden}, checks {name: {passed, ...}}, created {at, by, nonce}}

Example:
    >>> Version.decode(data).file("config.json").sha256
    'ab12...'
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from policyloop.errors import BadInput, NotFound, StoreError

SCHEMA = 1
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
KINDS = ("full", "lora", "quantised", "gguf", "reward_model", "dataset")


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int
    sha256: str
    role: str


@dataclass(frozen=True, slots=True)
class Version:
    """One immutable version. `number` counts per name and is never given twice; `id` is the same for equal files and lineage."""

    name: str
    number: int
    id: str
    files: tuple[File, ...]
    kind: str = "full"
    base: Mapping[str, Any] | None = None
    lineage: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    serving: Mapping[str, Any] = field(default_factory=dict)
    checks: Mapping[str, Any] = field(default_factory=dict)
    created: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __str__(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    def file(self, path: str) -> File:
        found = next((f for f in self.files if f.path == path), None)
        if found is None:
            raise NotFound(f"{self} has no file {path}", ", ".join(f.path for f in self.files[:8]), "the file's name")
        return found

    def failed_checks(self) -> list[str]:
        """Checks that forbid promotion (a parity check beyond its threshold, say)."""
        return [name for name, check in self.checks.items() if not check.get("passed", False)]

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1, sort_keys=True, ensure_ascii=False).encode()

    @classmethod
    def decode(cls, data: bytes, where: str = "the manifest") -> Version:
        """Errors: StoreError(corrupt) for what is no manifest, BadInput for a newer schema."""
        try:
            tree = json.loads(data)
            schema = tree["schema"]
            if schema == SCHEMA:
                version = cls(**{**tree, "files": tuple(File(**entry) for entry in tree["files"])})
                if version.id == identity(version.files, version.lineage):
                    return version
        except (ValueError, KeyError, TypeError) as problem:
            raise StoreError("corrupt", f"{where} cannot be read ({problem})", "a manifest as it was written", where) from problem
        if schema != SCHEMA:
            raise BadInput(f"{where} has schema {schema}", f"schema {SCHEMA} (`policyloop models migrate`)", where)
        raise StoreError(
            "corrupt", f"{where}: its id is not that of its files and lineage", "a manifest as it was written", where
        )


def canonical(value: Any) -> bytes:
    """One spelling of a JSON value, for hashing."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def identity(files: Iterable[File], lineage: Mapping[str, Any]) -> str:
    """The id of a version: sha256 over files (path, size, sha256, role) and lineage."""
    return hashlib.sha256(canonical([[asdict(f) for f in files], dict(lineage)])).hexdigest()


def check_name(name: str) -> str:
    """Errors: BadInput for a name that could leave its folder or confuse `@`, `#` and `/`."""
    if not re.fullmatch(NAME, name):
        raise BadInput(f"name {name!r}", "letters, digits, `.`, `_`, `-`, beginning with a letter or digit", "the name")
    return name


def check_path(path: str) -> str:
    """Errors: BadInput for a file path that is not plainly below the version."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or "\\" in path or any(p in ("..", ".") or p.startswith("..") for p in parts):
        raise BadInput(f"file {path!r}", "a relative path below the version's folder", "the file's name")
    return str(PurePosixPath(path))


def role_of(path: str) -> str:
    """What a file is for, by its name."""
    name = PurePosixPath(path).name
    if name.startswith("adapter_"):
        return "adapter"
    if name.endswith((".safetensors", ".gguf", ".safetensors.index.json")):
        return "weights"
    if name.startswith(("tokenizer", "vocab", "merges", "special_tokens", "added_tokens")) or name.endswith(".model"):
        return "tokenizer"
    if name.endswith(".jinja"):
        return "chat_template"
    exact = {"config.json": "config", "generation_config.json": "generation_config"}
    return exact.get(name, "data" if name.endswith((".jsonl", ".parquet", ".csv")) else "other")
