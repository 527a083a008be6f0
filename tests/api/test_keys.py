"""Keys: hashed, scoped, limited to models, taken away without a restart."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from policyloop.api.keys import ANYBODY, KeyFile
from policyloop.errors import BadInput, Denied, NotFound, Unauthenticated


def test_the_file_holds_the_hash_and_never_the_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    token = KeyFile(path).add("team-a", ["infer"], ["arith"])
    text = path.read_text()
    assert token not in text and hashlib.sha256(token.encode()).hexdigest() in text
    assert os.stat(path).st_mode & 0o077 == 0


def test_scopes_and_models(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    key = keys.find(keys.add("team-a", ["infer"], ["arith"]))
    key.need("infer", "arith")
    with pytest.raises(Denied, match="may not use model other: allowed is arith"):
        key.need("infer", "other")
    with pytest.raises(Denied, match="no scope promote"):
        key.need("promote")
    with pytest.raises(BadInput, match="scope root"):
        keys.add("b", ["root"])
    with pytest.raises(BadInput, match="is there already"):
        keys.add("team-a")


def test_without_a_file_everybody_may_ask_and_nobody_may_more() -> None:
    key = KeyFile(None).find(None)
    assert key is ANYBODY and key.may("infer") and key.may("feedback")
    with pytest.raises(Unauthenticated):
        key.need("admin")


def test_a_removed_key_is_refused_by_a_reader_that_is_already_open(tmp_path: Path) -> None:
    reader, writer = KeyFile(tmp_path / "keys.json"), KeyFile(tmp_path / "keys.json")
    token = writer.add("a")
    assert reader.find(token).name == "a"
    writer.remove("a")
    with pytest.raises(Unauthenticated):
        reader.find(token)
    with pytest.raises(NotFound):
        writer.remove("a")


def test_a_broken_file_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"keys": [{"name": "a", "sha256": "x", "scope": ["admin"]}]}')
    with pytest.raises(BadInput, match="scope"):
        KeyFile(tmp_path / "keys.json")
