"""A run's /metrics over HTTP: gauges by table name, counters that add up, histograms, a taken port, a push that cannot stop a run."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import which
from threading import Thread

import httpx
import pytest

from policyloop.errors import BadInput
from policyloop.monitor import MonitorSettings
from policyloop.training.exporter import Exporter


def scraped(exporter: Exporter) -> str:
    return httpx.get(f"http://127.0.0.1:{exporter.port}/metrics").text


def test_two_steps_as_prometheus_sees_them() -> None:
    with closing(Exporter(MonitorSettings(metrics_port=0))) as exporter:
        exporter.observe({"step": 1, "grad_norm": 0.5, "update/ok": 1.0, "time/update_s": 0.4, "no such key": 1.0})
        exporter.observe({"step": 2, "grad_norm": 2.0, "update/ok": 1.0, "update/nan": 1.0, "time/update_s": 0.6})
        exporter.saved()
        lines = scraped(exporter).splitlines()
    assert "policyloop_train_grad_norm 2.0" in lines
    assert 'policyloop_train_updates_total{reason="ok"} 2.0' in lines
    assert 'policyloop_train_updates_total{reason="nan"} 1.0' in lines
    assert 'policyloop_train_update_duration_seconds_bucket{le="0.5"} 1.0' in lines
    assert "policyloop_train_update_duration_seconds_count 2.0" in lines
    assert not any("no_such_key" in line for line in lines)
    stamp = next(line for line in lines if line.startswith("policyloop_train_last_checkpoint_timestamp_seconds "))
    assert float(stamp.split()[1]) > 1.7e9


@pytest.mark.skipif(which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)")
def test_the_page_is_well_formed_by_prometheus_own_rules() -> None:
    with closing(Exporter(MonitorSettings(metrics_port=0))) as exporter:
        exporter.observe({"step": 1, "update/ok": 1.0})
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=scraped(exporter), capture_output=True, text=True, timeout=60
        )
    errors = [line for line in done.stderr.splitlines() if "DCGM" not in line and "error while" in line]
    assert not errors, done.stderr


def test_a_taken_port_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadInput, match="metrics_port"):
            Exporter(MonitorSettings(metrics_port=taken.getsockname()[1]))


def test_a_push_gateway_gets_each_step_and_its_absence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    got: list[bytes] = []

    class Gateway(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Gateway)
    Thread(target=server.serve_forever, daemon=True).start()
    exporter = Exporter(MonitorSettings(push_url=f"127.0.0.1:{server.server_port}"), job="run")
    exporter.observe({"grad_norm": 0.25})
    assert b"policyloop_train_grad_norm 0.25" in got[0]
    server.shutdown()
    server.server_close()
    exporter.observe({"grad_norm": 0.5})
    exporter.observe({"grad_norm": 0.5})
    assert len([r for r in caplog.records if "were not pushed" in r.message]) == 1


def test_a_training_run_answers_while_it_trains(tmp_path: Path) -> None:
    """The port is open during the run and closed after it."""
    from policyloop.cli.show import RECIPES
    from policyloop.recipe import load
    from policyloop.run import start

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pages: list[str] = []

    def say(line: str) -> None:
        if line.startswith("step 2/"):
            pages.append(httpx.get(f"http://127.0.0.1:{port}/metrics").text)

    recipe = load(RECIPES / "tiny-sft.yaml", ["training.steps=2", f"monitor.metrics_port={port}", "evaluation.every=0"])
    start(recipe, tmp_path / "run", say=say)
    assert "policyloop_train_step 1.0" in pages[0]  # the line of step 2 is printed before its figures are there to scrape
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")
