"""A whole server from its settings: backend, keys, metrics, journal, two ports, and SIGTERM that drains.

Example:
    >>> serve("run://arith@best", ServeSettings(port=8000), opener, say=print)     # returns after SIGTERM
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from policyloop.api.app import Edge
from policyloop.api.keys import KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.api.running import Port, run
from policyloop.errors import BadInput
from policyloop.journal.writer import Journal
from policyloop.monitor.metrics import SERVING
from policyloop.rewards.answer_slot import spoken
from policyloop.rewards.math import extract
from policyloop.serve import Backend, Opener, ServeSettings
from policyloop.serve.app import applications
from policyloop.serve.service import Service

log = logging.getLogger(__name__)
Say = Callable[[str], None]


def serve(
    model: str,
    settings: ServeSettings,
    opener: Opener,
    say: Say,
    journal: Journal | None = None,
    adapters: Mapping[str, str] | None = None,
) -> None:
    """`adapters`: name -> MODEL of a LoRA adapter. Errors: BadInput for settings that do not fit together, whatever loading raises."""
    backend = BACKENDS[settings.engine](model, settings, opener)
    edge = Edge(Lifecycle(settings.stuck_s), KeyFile(Path(settings.keys) if settings.keys else None), Meters(SERVING))
    edge.life.version = lambda: next(iter(backend.models().values()))
    edge.life.beat_age_s = backend.beat_age_s
    service = Service(backend, edge, settings, None if journal is None else journal.offer)
    public, admin = applications(service, split, journal)
    ports = [Port(public, settings.host, settings.port), Port(admin, settings.admin_host, settings.admin_port)]

    async def start() -> None:
        await backend.start()
        for name, adapter in (adapters or {}).items():
            await backend.add_adapter(name, adapter)

    async def stop() -> None:
        await backend.close(0.0)  # what could end in time has ended

    with journal or contextlib.nullcontext():
        run(ports, edge.life, settings.drain_s, start, stop, say)


def split(text: str) -> tuple[str, str]:
    """(answer, reasoning) of a completion: the answer as the grader reads it, else what was said after the thinking."""
    said = spoken(text)
    found = extract(text)
    return (said.strip() if found is None else found), text.strip()


def _builtin(model: str, settings: ServeSettings, opener: Opener) -> Backend:
    from policyloop.serve.builtin import BuiltinBackend

    return BuiltinBackend(model, settings.name or model, opener, settings)


def _http(model: str, settings: ServeSettings, opener: Opener) -> Backend:
    from policyloop.serve.http import HttpBackend

    if settings.url is None:
        raise BadInput("engine http without a URL", "the other server's address, such as http://127.0.0.1:8001/v1", "--url")
    return HttpBackend(settings.url, settings.name or model, settings)


def _vllm(model: str, settings: ServeSettings, opener: Opener) -> Backend:
    from policyloop.serve.vllm import VllmBackend

    folder, sampling = opener.folder(model)
    return VllmBackend(folder, settings.name or model, settings, sampling)


BACKENDS: dict[str, Callable[[str, ServeSettings, Opener], Backend]] = {"builtin": _builtin, "http": _http, "vllm": _vllm}
