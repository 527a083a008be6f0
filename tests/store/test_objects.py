"""Object storage: a server that ignores conditions is refused, failures are told apart, keys come from where they should, `s3://` where a path goes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from policyloop.errors import BadInput, Conflict, NotFound, StoreError
from policyloop.models.catalogue import resolve
from policyloop.store import open_store, stored, uris
from policyloop.store.backend import open_backend, split
from policyloop.store.keys import config_for
from policyloop.store.objects import Objects
from policyloop.tasks.files import create_bytes
from policyloop.tasks.reading import read
from policyloop.training.checkpoint import Checkpoints, verify

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL", "POLICYLOOP_STORE_KEYS", "AWS_PROFILE")


@pytest.fixture
def no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


@pytest.fixture
def bucket(seaweed: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A fresh prefix on the running S3 server."""
    for name, value in seaweed.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    return f"s3://policyloop/{uuid.uuid4().hex}"


# --- a server that ignores conditions ---------------------------------------------------------------------------------------


@pytest.fixture
def nanio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 server that lets every create-only write win."""
    program = shutil.which("nanio")
    if program is None:
        pytest.skip("nanio is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "anykey12345", "AWS_SECRET_ACCESS_KEY": "secret123456", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": address}.items():
        monkeypatch.setenv(name, value)
    own = {**os.environ, "NANIO_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"], "NANIO_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"]}
    (tmp_path / "data" / "policyloop").mkdir(parents=True)
    command = [
        program,
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-access-log",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=own)
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            try:
                httpx.get(address, timeout=1.0)
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        yield "s3://policyloop/store"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_store_that_ignores_conditions_is_refused_before_the_first_write(nanio: str) -> None:
    store = open_store(nanio)
    with pytest.raises(StoreError, match="ignores create-only writes") as caught:
        store.publish("answers", {"model.safetensors": b"x"})
    assert caught.value.fault == "unconditional"
    with pytest.raises(StoreError, match="no log can be kept here"):
        store.append("answers", "promoted", "ann", "why")
    assert store.backend.list("models") == [] and store.backend.list("blobs") == []


def test_a_folder_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")  # what FAT and some network mounts answer

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match="no hard links") as caught:
        open_store(str(tmp_path)).probe()
    assert caught.value.fault == "unconditional"


# --- failures told apart ----------------------------------------------------------------------------------------------------


def test_nobody_there_is_network(no_keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policyloop.store.objects.RETRY", {"max_retries": 0})
    for name, value in {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError) as caught:
        open_store("s3://bucket/store").state("answers")
    assert caught.value.fault == "network" and "\n" not in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (403, "<Error><Code>AccessDenied</Code></Error>", "permission"),
        (403, "<Error><Code>SignatureDoesNotMatch</Code></Error>", "permission"),
        (403, "<Error><Code>QuotaExceeded</Code></Error>", "quota"),
        (507, "<Error><Code>InsufficientStorage</Code></Error>", "quota"),
        (404, "<Error><Code>NoSuchBucket</Code></Error>", "missing"),
        (501, "<Error><Code>NotImplemented</Code></Error>", "unconditional"),
        (503, "<Error><Code>SlowDown</Code></Error>", "network"),
    ],
)
def test_what_a_server_answers_is_told_apart(
    no_keys: None, monkeypatch: pytest.MonkeyPatch, answering: str, status: int, body: str, fault: str
) -> None:
    monkeypatch.setattr("policyloop.store.objects.RETRY", {"max_retries": 0})
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": f"{answering}/{status}/{body.split('Code>')[1][:-2]}"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError) as caught:
        Objects("s3://bucket/store").create("a", b"x")
    assert caught.value.fault == fault


@pytest.fixture
def answering() -> Iterator[str]:
    """A server whose every answer is the status and code in its path."""
    import http.server
    import threading

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            _, status, code, *_ = self.path.split("/")
            body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("other", [None, b"theirs", b"mine"], ids=["failed", "won", "was ours"])
def test_a_conflict_is_decided_by_what_lies_there(no_keys: None, monkeypatch: pytest.MonkeyPatch, other: bytes | None) -> None:
    """S3 answers 409 while another create of the same name is under way; it may fail, or win, or have been our own first try."""
    import http.server
    import threading

    objects: dict[str, bytes] = {}
    puts: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body)),
                "ETag": '"1"',
                "Last-Modified": "Tue, 01 Dec 2026 00:00:00 GMT",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["If-None-Match"] == "*"
            puts.append(self.path)
            if len(puts) == 1:
                objects.update({} if other is None else {self.path: other})
                self.answer(409, b"<Error><Code>ConditionalRequestConflict</Code></Error>")
            else:
                objects[self.path] = body
                self.answer(200)

        def do_GET(self) -> None:
            found = objects.get(self.path)
            self.answer(404) if found is None else self.answer(200, found)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}.items():
        monkeypatch.setenv(name, value)
    try:
        assert Objects("s3://bucket/store").create("a", b"mine") is (other != b"theirs")
        assert (len(puts), list(objects.values())) == (2 if other is None else 1, [other or b"mine"])
    finally:
        server.shutdown()
        server.server_close()


def test_a_full_and_a_forbidden_disk_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))
    store.publish("answers", {"model.safetensors": b"x"})
    for number, fault in ((28, "quota"), (122, "quota"), (13, "permission"), (30, "permission"), (5, "network")):

        def write(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch, pytest.raises(StoreError) as caught:
            patch.setattr(os, "write", write)
            store.append("answers", "candidate", "ann", "why")
        assert caught.value.fault == fault
    assert store.state("answers").n == 1 and not list(tmp_path.rglob("*.tmp"))


def test_what_is_no_storage_is_said() -> None:
    with pytest.raises(BadInput, match="ftp:// is no storage"):
        open_store("ftp://host/store")
    assert split("gs://bucket/a//b/")[1] == "a/b"


# --- keys -------------------------------------------------------------------------------------------------------------------


def test_keys_from_a_file_a_folder_a_profile_and_the_environment_first(
    no_keys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config_for("s3://bucket") == {}
    (tmp_path / "profile").write_text("[default]\naws_access_key_id = p\naws_secret_access_key = q%r\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "profile"))
    assert config_for("s3://bucket") == {"aws_access_key_id": "p", "aws_secret_access_key": "q%r"}
    (tmp_path / "keys").write_text(
        '# mine\nexport AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY="b=c"\nAZURE_STORAGE_ACCOUNT_KEY=z\n'
    )
    monkeypatch.setenv("POLICYLOOP_STORE_KEYS", str(tmp_path / "keys"))
    assert config_for("s3://bucket") == {"aws_access_key_id": "a", "aws_secret_access_key": "b=c"}
    assert config_for("az://account/container") == {"azure_storage_account_key": "z"}
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/AWS_ACCESS_KEY_ID").write_text("f\n")
    monkeypatch.setenv("POLICYLOOP_STORE_KEYS", str(tmp_path / "secret"))
    assert config_for("s3://bucket") == {"aws_access_key_id": "f"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "e")
    assert config_for("s3://bucket") == {}
    monkeypatch.setenv("POLICYLOOP_STORE_KEYS", str(tmp_path / "nowhere"))
    with pytest.raises(StoreError, match="nowhere cannot be read"):
        config_for("s3://bucket")


# --- where a path goes ------------------------------------------------------------------------------------------------------


def test_data_on_s3_is_read_and_written_like_files(bucket: str) -> None:
    for name in ("train.jsonl", "more/test.jsonl.gz", ".hidden/x.jsonl"):
        uris.upload(f"{bucket}/data/{name}", b"")
    rows = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(3)]
    with create_bytes(f"{bucket}/data/train.jsonl", force=True) as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    assert [r.values for r in read(f"{bucket}/data/train.jsonl")] == rows
    found = [name.removeprefix(f"{bucket}/") for name in uris.list_files(f"{bucket}/data", (".jsonl",))]
    assert found == ["data/more/test.jsonl.gz", "data/train.jsonl"]
    assert uris.is_folder(f"{bucket}/data") and not uris.exists(f"{bucket}/other")
    with pytest.raises(Conflict, match="exists already"), create_bytes(f"{bucket}/data/train.jsonl") as stream:
        stream.write(b"")
    with pytest.raises(NotFound, match="does not exist"):
        list(read(f"{bucket}/data/other.jsonl"))


def test_a_folder_and_a_stored_version_on_s3_are_models(bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, data in {"config.json": b'{"a": 1}', "model.safetensors": b"weights"}.items():
        (folder / name).write_bytes(data)
    uris.mirror({p.name: p for p in folder.iterdir()}, f"{bucket}/tiny")
    fetched = resolve(f"{bucket}/tiny")
    assert {p.name: p.read_bytes() for p in fetched.iterdir()} == {"config.json": b'{"a": 1}', "model.safetensors": b"weights"}
    open_store(f"{bucket}/store").publish("answers", folder)
    found = stored(f"{bucket}/store/answers@1")
    assert found is not None and str(found[1]) == "answers@1"
    assert (resolve(f"{bucket}/store/answers@1") / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    uris.upload(f"{bucket}/tiny/config.json", b"{}", force=True)
    assert (resolve(f"{bucket}/tiny") / "config.json").read_bytes() == b"{}"


def test_a_second_checkpoint_destination_on_s3(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    second = f"{bucket}/copies"
    checkpoints = Checkpoints(tmp_path / "here", second=second, on_event=lambda kind, info: events.append(info["text"]))
    checkpoints.save(20, {"state.json": b"{}", "policy/model.safetensors": b"w" * 100}, score=0.5)
    assert events == []
    back = uris.fetch_folder(f"{second}/00000020").rename(tmp_path / "00000020")
    manifest = verify(back)
    assert manifest is not None and manifest["score"] == 0.5
    monkeypatch.setattr(time, "sleep", lambda s: None)
    lost = Checkpoints(
        tmp_path / "there", second="s3://no-such-bucket-here/x", on_event=lambda kind, info: events.append(info["text"])
    )
    lost.save(1, {"state.json": b"{}"})
    assert lost.latest() is not None and (len(events) == 3 or open_backend("s3://no-such-bucket-here").list("x"))


def test_a_large_object_goes_in_parts_and_comes_in_ranges(bucket: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 20
    (tmp_path / "large.safetensors").write_bytes(data)
    store = open_store(f"{bucket}/store")
    version = store.publish("large", {"large.safetensors": tmp_path / "large.safetensors"})
    assert store.verify(version) == [] and store.read(version, "large.safetensors") == data
