"""Run applications on their ports until SIGTERM or SIGINT; then drain: new requests get 503, running ones end, the process leaves.

uvicorn's own way stops listening first, so that a load balancer that has not heard yet meets a closed port; here the port answers 503 with
Retry-After until the last answer is out.

Example:
    >>> run([Port(app, "127.0.0.1", 8000), Port(admin, "127.0.0.1", 8090)], life, drain_s=25)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn

from policyloop.api.lifecycle import DRAIN_S, Lifecycle
from policyloop.errors import BadInput

log = logging.getLogger(__name__)
BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Port:
    """`number` 0 = any free one."""

    app: Any
    host: str
    number: int


class _Server(uvicorn.Server):
    """Signals are `run`'s business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def nothing() -> None:
    return None


def run(
    ports: Sequence[Port],
    life: Lifecycle,
    drain_s: float = DRAIN_S,
    start: Callable[[], Awaitable[None]] = nothing,
    stop: Callable[[], Awaitable[None]] = nothing,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Listens at once, then `start`s (loads a model, say) while /health/live already answers; what `start` raises ends the run."""
    sockets = [bound(port.host, port.number) for port in ports]
    asyncio.run(_run(ports, sockets, life, drain_s, start, stop, say))


def bound(host: str, number: int) -> socket.socket:
    """A listening socket. Errors: BadInput for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, or asyncio leaves Nagle on and every answer of two packets waits 40 ms for an acknowledgement
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, number))
    except OSError as problem:
        sock.close()
        raise BadInput(f"{host}:{number} cannot be listened on ({problem.strerror})", "a free port", "--port") from problem
    return sock


async def _run(
    ports: Sequence[Port],
    sockets: Sequence[socket.socket],
    life: Lifecycle,
    drain_s: float,
    start: Callable[[], Awaitable[None]],
    stop: Callable[[], Awaitable[None]],
    say: Callable[[str], None],
) -> None:
    servers = [
        _Server(uvicorn.Config(p.app, log_level="warning", access_log=False, backlog=BACKLOG, lifespan="off")) for p in ports
    ]
    serving = [asyncio.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    for port, sock in zip(ports, sockets, strict=True):
        say(f"{port.app.title} listens on http://{port.host}:{sock.getsockname()[1]}")
    starting = asyncio.ensure_future(start())
    leaving = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({starting, leaving, *serving}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            life.started()
            say(f"ready: {life.version()}")
            await asyncio.wait({leaving, *serving}, return_when=asyncio.FIRST_COMPLETED)
        if not await life.drain(drain_s):
            log.warning("%d requests were still running after %g s", life.running, drain_s)
    finally:
        leaving.cancel()
        await stop()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving, return_exceptions=True)
