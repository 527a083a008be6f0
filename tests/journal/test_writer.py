"""The journal: nothing acknowledged is lost to a kill, nothing personal reaches a disk, a full or absent store loses nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from policyloop.errors import BadInput, Unavailable
from policyloop.journal import Feedback, JournalSettings, Record, open_journal
from policyloop.journal.redact import Redactor
from policyloop.journal.segments import decode, encode, rows_of
from policyloop.journal.shipping import Shelf
from policyloop.journal.writer import Journal, redact_record, ship_left_behind
from policyloop.types import SamplingParams

NOW = time.time()


def settings(tmp_path: Path, **more: Any) -> JournalSettings:
    return JournalSettings(folder=str(tmp_path / "journal"), store=str(tmp_path / "store"), **more)


def exchange(request_id: str, **more: Any) -> dict[str, Any]:
    ids = {"prompt_token_ids": [5, 6], "token_ids": [7, 8], "logprobs": [-0.5, -1.5]}
    return {"request_id": request_id, "prompt": "2+3=", "text": "5", "model": "m", "version": "m@1", "key": "k", **ids, **more}


def test_off_unless_asked_for() -> None:
    assert open_journal(None) is None


def test_a_record_comes_back_from_the_store_as_it_went_in(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "2+3="}]
    with Journal(settings(tmp_path)) as journal:
        assert journal.offer(exchange("r1", prompt=messages, at=NOW, sampling={"temperature": 0.7}, session="s", source="canary"))
        assert journal.flush() + journal.counts.shipped >= 1
        (row,) = journal.shelf.read("records").to_pylist()
    assert json.loads(row["prompt"]) == messages and json.loads(row["sampling"]) == {"temperature": 0.7}
    assert (row["prompt_token_ids"], row["token_ids"], row["logprobs"], row["tokens"]) == ([5, 6], [7, 8], [-0.5, -1.5], 2)
    assert (row["request_id"], row["at"], row["version"], row["source"], row["redacted"]) == (
        "r1",
        NOW,
        "m@1",
        "canary",
        False,
    )
    assert not list((tmp_path / "journal").glob("*/*"))  # everything was shipped, nothing stays behind


def test_what_personal_data_was_cut_out_of_loses_ids_and_logprobs() -> None:
    redactor = Redactor()
    clean = redact_record(Record.of(exchange("r1", text="write to a@b.org", user="u@b.org")), redactor)
    assert clean.redacted and clean.text == "write to [email]" and clean.tokens == 2
    assert clean.token_ids == clean.prompt_token_ids == clean.logprobs == []
    assert redact_record(Record.of(exchange("r2")), redactor).token_ids == [7, 8]
    served = asdict(SamplingParams(max_new_tokens=8, temperature=0.0))  # as a server hands it over: tuples, nothing personal
    clean = redact_record(Record.of(exchange("r2", sampling=served)), redactor)
    assert clean.token_ids == [7, 8] and not clean.redacted
    unseen = redact_record(Record.of(exchange("r3", text="")), redactor)  # ids that nobody can look at
    assert unseen.redacted and unseen.token_ids == []
    stop = redact_record(Record.of(exchange("r4", sampling={"stop": ["a@b.org"]})), redactor)
    assert stop.redacted and stop.sampling == {"stop": ["[email]"]}


def test_sampling_is_by_request_id_and_store_false_is_respected(tmp_path: Path) -> None:
    with Journal(settings(tmp_path, sample=0.5)) as a:
        chosen = [i for i in range(200) if a._wanted({"request_id": f"r{i}"})]
        assert 60 < len(chosen) < 140 and chosen == [i for i in range(200) if a._wanted({"request_id": f"r{i}"})]
        a.offer(exchange(f"r{chosen[0]}", store=False))
        assert a.counts.written == 0


def test_a_torn_tail_costs_only_itself(tmp_path: Path) -> None:
    lines = [encode("records", {"request_id": f"r{i}", "logprobs": [float("nan")]}) for i in range(3)]
    damaged = lines[1].replace(b'"r1"', b'"rX"')
    path = tmp_path / "00000001.sealed"
    path.write_bytes(lines[0] + damaged + lines[2] + lines[0][:-4])
    assert [row["request_id"] for _, row in rows_of(path)] == ["r0", "r2"]
    assert decode(lines[0]) == ("records", {"request_id": "r0", "logprobs": [None]})


def test_a_store_that_is_away_loses_nothing_and_a_full_folder_refuses(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file in the store's place")
    journal = Journal(settings(tmp_path, max_local_bytes=300))
    journal.append(exchange("r1"))
    assert journal.flush() == 0 and journal.counts.failed_shipments >= 1
    with pytest.raises(Unavailable, match="max_local_bytes"):
        journal.append(exchange("r2"))
    assert journal.counts.refused == 1
    (tmp_path / "store").unlink()
    assert journal.ship() == 1
    journal.append(exchange("r3"))
    journal.close()
    assert journal.shelf.read("records")["request_id"].to_pylist() == ["r1", "r3"]
    with pytest.raises(Unavailable, match="closed"):
        journal.append(exchange("r4"))


def test_a_row_that_cannot_be_redacted_is_refused_alone(tmp_path: Path) -> None:
    with Journal(settings(tmp_path)) as journal:
        assert journal.redactor is not None
        spans = journal.redactor.spans
        journal.redactor.spans = lambda text: 1 / 0 if "bad" in text else spans(text)  # type: ignore[method-assign,assignment,return-value]
        with pytest.raises(Unavailable):
            journal.append(exchange("r1", text="bad"))
        journal.append(exchange("r2"))
        assert (journal.counts.written, journal.counts.refused) == (1, 1)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "x"}, "request_id"),
        ({"request_id": "r", "token_ids": [1], "logprobs": [-1.0, -2.0]}, "2 log-probs of 1 tokens"),
    ],
)
def test_unreadable_records_are_refused(row: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Record.of(row)


@pytest.mark.parametrize("change", [{"sample": 2.0}, {"segment_s": 0.0}, {"queue": 0}, {"max_age_days": -1.0}])
def test_settings_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        JournalSettings(**change)


# --- kill -9 ----------------------------------------------------------------------------------------------------------------

WRITE = """
import sys, threading
from policyloop.journal import Feedback, JournalSettings
from policyloop.journal.writer import Journal
folder, store, start, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), 64
journal = Journal(JournalSettings(folder=folder, store=store, segment_bytes=int(sys.argv[5]), segment_s=0.2, redact=False))
said = threading.Lock()
def work(k):
    for i in range(start + k, 10**9, threads):
        journal.append(Feedback(request_id=f"r{i}", at=float(sys.argv[4]), key="k", kind="thumb", value=1.0))
        with said:
            sys.stdout.write(f"r{i}\\n"); sys.stdout.flush()
for k in range(threads):
    threading.Thread(target=work, args=(k,), daemon=True).start()
threading.Event().wait()
"""


def campaign(tmp_path: Path, events: int, seed: int) -> None:
    """Writers are killed at random until `events` were acknowledged; then everything acknowledged is in the store, once."""
    journal, store, draw = tmp_path / "journal", tmp_path / "store", random.Random(seed)
    acknowledged: list[str] = []
    kills = 0
    while len(acknowledged) < events:
        out = tmp_path / f"out{kills}"
        with out.open("wb") as stream:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WRITE,
                    str(journal),
                    str(store),
                    str(kills * 10**7),
                    str(NOW),
                    str(max(20_000, events * 10)),
                ],
                stdout=stream,
            )
            while out.stat().st_size == 0 and process.poll() is None:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, max(0.4, events / 40_000)))
            process.send_signal(signal.SIGKILL)
            process.wait()
        acknowledged += out.read_text().rpartition("\n")[0].split("\n")
        kills += 1
    shelf = Shelf.at(str(store))
    ship_left_behind(journal, shelf)
    ship_left_behind(journal, shelf)
    stored = shelf.read("feedback")["request_id"].to_pylist()
    assert kills >= 2 and set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored)) < len(acknowledged) + 64 * kills + 1  # what was under way, no more


def test_nothing_acknowledged_is_lost_to_a_kill(tmp_path: Path) -> None:
    campaign(tmp_path, 300, seed=1)


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_to_many_kills_in_100_000_events(tmp_path: Path) -> None:
    campaign(tmp_path, 100_000, seed=2)


def test_files_are_private(tmp_path: Path) -> None:
    with Journal(settings(tmp_path)) as journal:
        journal.append(exchange("r1"))
        (path,) = (tmp_path / "journal").glob("*/*.open")
        assert os.stat(path).st_mode & 0o777 == 0o600 and os.stat(path.parent).st_mode & 0o777 == 0o700


def test_feedback_values_are_redacted_too(tmp_path: Path) -> None:
    with Journal(settings(tmp_path)) as journal:
        journal.append(Feedback(request_id="r1", at=1.0, key="k", kind="edit", value="mail a@b.org", user="x@y.org"))
        (path,) = (tmp_path / "journal").glob("*/*.open")
        assert b"a@b.org" not in path.read_bytes() and b"x@y.org" not in path.read_bytes()
