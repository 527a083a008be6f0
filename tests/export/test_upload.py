"""An upload that breaks goes on where it stopped, and the manifest comes last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyloop.errors import Conflict, StoreError
from policyloop.export import upload as uploading
from policyloop.store.folder import Folder


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    folder.mkdir()
    files = {"a.json": b"{}", "b.safetensors": b"weights", "c.txt": b"words"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = [{"path": n, "size": len(d), "sha256": n} for n, d in files.items()]
    (folder / "manifest.json").write_text(json.dumps({"id": "one", "files": listed}))
    return folder


class Breaks(Folder):
    """A folder that takes two writes and then has a broken network, until it is mended."""

    left: int | None = 2
    sent: list[str] = []  # noqa: RUF012

    def replace(self, key: str, data: bytes | Path) -> None:
        if self.left is not None and key != uploading.PROGRESS:
            if self.left == 0:
                raise StoreError("network", "the line is dead")
            self.left -= 1
        super().replace(key, data)
        self.sent.append(key)


def test_a_broken_upload_sends_the_rest_and_nothing_twice(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Breaks(tmp_path / "there")
    storage.sent = []
    monkeypatch.setattr(uploading, "open_backend", lambda uri: storage)
    with pytest.raises(StoreError, match="dead"):
        uploading.upload(bundle, "s3://x/y")
    assert not (tmp_path / "there" / "manifest.json").exists()
    storage.left = None
    storage.sent.clear()
    assert uploading.upload(bundle, "s3://x/y") == 1
    assert storage.sent == ["c.txt", uploading.PROGRESS, "manifest.json"]
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == ["a.json", "b.safetensors", "c.txt", "manifest.json"]
    assert uploading.upload(bundle, "s3://x/y") == 0


def test_another_bundle_is_not_replaced_by_accident(bundle: Path, tmp_path: Path) -> None:
    uri = str(tmp_path / "there")
    assert uploading.upload(bundle, uri) == 3
    tree = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**tree, "id": "two"}))
    with pytest.raises(Conflict, match="another bundle"):
        uploading.upload(bundle, uri)
    uploading.upload(bundle, uri, force=True)
    assert json.loads((tmp_path / "there" / "manifest.json").read_text())["id"] == "two"
