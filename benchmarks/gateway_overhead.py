"""What the gateway costs, beside nginx and HAProxy in front of the same backend in one run.

A small C-fast backend (nginx answering a fixed OpenAI reply) stands behind each of: nothing, nginx, HAProxy, `policyloop gateway`. Each gets the
same closed-loop load for a few seconds, in turns, so that a busy moment hits all of them; the median of the turns is printed.

Example:
    $ apt-get install nginx haproxy && python benchmarks/gateway_overhead.py --seconds 3 --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPLY = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "2+2"}]}).encode()


def free() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def nginx_conf(folder: Path, port: int, location: str, extra: str = "") -> Path:
    """One worker, no logs, keep-alive upstreams."""
    path = folder / f"nginx-{port}.conf"
    path.write_text(
        f"daemon off; worker_processes 1; pid {folder}/{port}.pid; error_log /dev/null; events {{ worker_connections 1024; }}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/b{port}; proxy_temp_path {folder}/p{port}; fastcgi_temp_path {folder}/f{port};"
        f" uwsgi_temp_path {folder}/u{port}; scgi_temp_path {folder}/s{port}; keepalive_requests 1000000; {extra}\n"
        f"server {{ listen 127.0.0.1:{port}; {location} }} }}\n"
    )
    return path


@contextlib.contextmanager
def running(command: list[str], port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{command[0]} did not start")
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


@contextlib.contextmanager
def contenders() -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as place:
        folder, backend, nginx, haproxy, ours, admin = Path(place), free(), free(), free(), free(), free()
        reply = json.dumps(REPLY)
        conf = nginx_conf(folder, backend, f"location / {{ default_type application/json; return 200 '{reply}'; }}")
        stack.enter_context(running(["nginx", "-p", place, "-c", str(conf)], backend))
        proxy = 'location / { proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection ""; }'
        conf = nginx_conf(folder, nginx, proxy, f"upstream up {{ server 127.0.0.1:{backend}; keepalive 64; }}")
        stack.enter_context(running(["nginx", "-p", place, "-c", str(conf)], nginx))
        cfg = folder / "haproxy.cfg"
        cfg.write_text(
            "global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  http-reuse always\n"
            f"frontend f\n  bind 127.0.0.1:{haproxy}\n  default_backend b\nbackend b\n  server s 127.0.0.1:{backend}\n"
        )
        stack.enter_context(running(["haproxy", "-f", str(cfg), "-db"], haproxy))
        config = folder / "gateway.yaml"
        model = {"name": "m", "max_running": 4096, "backends": [{"url": f"http://127.0.0.1:{backend}", "version": 1}]}
        config.write_text(
            json.dumps({"gateway": {"port": ours, "admin_port": admin, "store": place + "/store", "models": [model]}})
        )
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        stack.enter_context(running([sys.executable, "-m", "policyloop", "gateway", str(config)], ours, env))
        time.sleep(3)
        yield {"backend alone": backend, "nginx": nginx, "HAProxy": haproxy, "policyloop gateway": ours}


async def worker(port: int, until: float, times: list[float]) -> None:
    """One keep-alive connection, one request after the other; raw, so that the client costs little."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    request = head.encode() + BODY
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.perf_counter() < until:
        began = time.perf_counter()
        writer.write(request)
        header = await reader.readuntil(b"\r\n\r\n")
        assert header.startswith(b"HTTP/1.1 200"), header
        length = next(int(h.split(b":")[1]) for h in header.split(b"\r\n") if h.lower().startswith(b"content-length"))
        await reader.readexactly(length)
        times.append(time.perf_counter() - began)
    writer.close()


async def load(port: int, connections: int, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(worker(port, until, times) for _ in range(connections)))
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if missing := [name for name in ("nginx", "haproxy") if shutil.which(name) is None]:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    print("| | p50 at 1 connection | p99 | requests/s at 32 connections |\n|---|---|---|---|")
    with contenders() as ports:
        rows: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ports}
        for _ in range(args.rounds):
            for name, port in ports.items():
                alone, many = asyncio.run(load(port, 1, args.seconds)), asyncio.run(load(port, 32, args.seconds))
                rows[name].append((statistics.median(alone), alone[int(len(alone) * 0.99)], len(many) / args.seconds))
        for name, runs in rows.items():
            p50, p99, rate = (statistics.median(r[i] for r in runs) for i in range(3))
            print(f"| {name} | {1000 * p50:.2f} ms | {1000 * p99:.2f} ms | {rate:,.0f} |")


if __name__ == "__main__":
    main()
