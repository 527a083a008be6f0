"""The verbs over a store: what they print, what they exit with, in the order a model lives through them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policyloop.cli import main
from policyloop.models.tiny import make_tiny
from policyloop.store import open_store
from policyloop.store.registry import blob_key


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLICYLOOP_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POLICYLOOP_ACTOR", "ann")
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out + out.err

    return run


def test_the_life_of_a_model(place: Path, run) -> None:
    folder = make_tiny(place / "elsewhere")
    code, text = run("models", "import", str(folder), "--name", "answers", "--lineage", "trainer=other", "--alias", "candidate")
    assert code == 0 and text.startswith(f"answers@1 in {place}/store: full, ")
    (folder / "generation_config.json").write_text('{"eos_token_id": [2]}')
    assert run("models", "import", str(folder), "--name", "answers")[0] == 0
    assert "2 versions, newest 2, candidate 1" in run("models", "list")[1]
    assert [line.split("  ")[:2] for line in run("models", "list", "answers")[1].splitlines()] == [
        ["answers@1", "(candidate)"],
        ["answers@2", "full"],
    ]

    code, text = run("models", "promote", "answers@1", "--reason", "first")
    assert code == 3 and "no gate report says SHIP for answers@1" in text
    assert run("models", "promote", "answers@1", "--reason", "first", "--force")[0] == 0
    hold, ship = place / "hold.json", place / "ship.json"
    hold.write_text('{"verdict": "HOLD"}')
    ship.write_text('{"verdict": "SHIP", "lift": 0.07}')
    code, text = run("models", "promote", "answers@2", "--reason", "better", "--report", str(hold))
    assert code == 3 and "says HOLD" in text
    code, text = run("models", "promote", "answers@2", "--reason", "better", "--report", str(ship))
    assert (code, text) == (0, "answers@2 is stable, answers@1 before it (event 5)\n")
    assert run("models", "promote", "answers@2", "--reason", "again", "--report", str(ship))[0] == 1

    code, text = run("models", "rollback", "answers", "--reason", "worse on Tuesdays")
    assert (code, text) == (0, "answers@1 is stable (event 6); quarantined: 2\n")
    code, text = run("models", "promote", "answers@2", "--reason", "again", "--report", str(ship))
    assert code == 3 and "answers@2 is quarantined" in text

    lines = run("models", "audit", "answers")[1].splitlines()
    types = ["imported", "candidate", "imported", "promoted", "promoted", "rolled_back"]
    assert [re.split(r"\s{2,}", line.strip())[2].split()[0] for line in lines] == types
    assert lines[3].endswith("by ann: first (forced)") and "better (report " in lines[4]
    at = json.loads(run("models", "audit", "answers", "--json")[1].splitlines()[4])["at"]
    assert "answers@2 was stable" in run("models", "audit", "answers", "--at", at)[1]
    assert "nothing had happened" in run("models", "audit", "answers", "--at", "2020-01-01T00:00")[1]
    assert run("models", "audit", "answers", "--at", "yesterday")[0] == 2

    code, text = run("models", "diff", "answers@1", "answers@2")
    assert code == 0 and "file generation_config.json: other bytes" in text and "trainer" in text
    code, text = run("trace", "answers@2")
    assert code == 0 and "promoted on " in text and "began from what the import did not say" in text


def test_verify_names_the_byte_and_the_event_that_changed(place: Path, run) -> None:
    run("models", "import", str(make_tiny(place / "elsewhere")), "--name", "answers")
    assert run("models", "verify")[0] == 0
    store = open_store(str(place / "store"))
    path = place / "store" / blob_key(store.version("answers", 1).file("model.safetensors").sha256)
    data = bytearray(path.read_bytes())
    data[1000] ^= 4
    path.write_bytes(data)
    code, text = run("models", "verify", "answers@1")
    assert code == 1 and "WRONG: answers@1: model.safetensors was changed" in text
    code, text = run("chat", "answers@1")
    assert code == 1 and "answers@1 model.safetensors" in text

    run("models", "promote", "answers@1", "--reason", "first", "--force")
    event = place / "store/models/answers/log/0000000001.json"
    event.write_text(event.read_text().replace('"by": "ann"', '"by": "bob"'))
    assert "WRONG: answers: event 2 does not follow from event 1" in run("models", "verify", "answers")[1]


def test_a_stored_version_is_a_model_everywhere(place: Path, run) -> None:
    run("models", "import", str(make_tiny(place / "elsewhere")), "--name", "answers")
    code, text = run("evaluate", "answers@1", "--task", "tiny_arithmetic", "--prompts", "4", "--max-new-tokens", "4")
    assert code == 0 and "answers@1" in text
    assert run("evaluate", "answers@stable", "--task", "tiny_arithmetic")[0] == 2


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": "{}", "pytorch_model.bin": "x"}, "only pytorch_model.bin, which can run code"),
        ({"model.safetensors": "x"}, "neither config.json nor adapter_config.json"),
        ({}, "has no weights"),
    ],
)
def test_what_is_no_model_is_not_imported(place: Path, run, files: dict[str, str], words: str) -> None:
    (place / "bad").mkdir()
    for name, text in files.items():
        (place / "bad" / name).write_text(text)
    code, text = run("models", "import", str(place / "bad"))
    assert code == 2 and words in text
    assert not (place / "store" / "models").exists()


def test_gc_says_what_it_would_do_and_does_it(place: Path, run) -> None:
    folder = make_tiny(place / "elsewhere")
    for number in range(3):
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [number]}))
        run("models", "import", str(folder), "--name", "answers")
    run("models", "promote", "answers@1", "--reason", "first", "--force")
    flags = ("--last", "1", "--best", "0", "--days", "0", "--grace-s", "0")
    assert "answers@2 would be announced" in run("models", "gc", *flags, "--dry-run")[1]
    text = run("models", "gc", *flags)[1]
    assert "answers@2 announced" in text and "answers@2 deleted" in text
    assert open_store(str(place / "store")).numbers("answers") == [1, 3]
    assert run("models", "show", "answers@2")[0] == 2
    assert run("trace", "answers@2")[1].startswith("answers@2  (deleted)  full")  # its lineage is left
    assert "0 manifests would be rewritten" in run("models", "migrate", "--dry-run")[1]


def test_data_enters_on_its_own_shelf_and_the_store_may_stand_before_the_name(place: Path, run) -> None:
    (place / "rows.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n')
    code, text = run("models", "import", str(place / "rows.jsonl"), "--shelf", "datasets")
    assert code == 0 and text.startswith(f"rows@1 in {place}/store: dataset, 1 files, 36 bytes")
    assert "rows " in run("models", "list", "--shelf", "datasets")[1] and "rows " not in run("models", "list")[1]
    assert run("models", "verify", "rows@1", "--shelf", "datasets")[0] == 0
    run("models", "import", str(make_tiny(place / "elsewhere")), "--name", "answers", "--store", str(place / "other"))
    assert run("models", "show", f"{place}/other/answers@1")[0] == 0 and run("models", "show", "answers@1")[0] == 2
