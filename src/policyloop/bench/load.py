"""Load on a server: requests as they come (open loop) or as clients wait for answers (closed loop), and what each of them saw.

In: a base URL and a `Load`. Out: figures (requests/s, tokens/s, time to first token, time per token, whole latency as p50/p95/p99 in
seconds), failures counted, never left out. In the open loop a late answer delays nobody's arrival, so a server that cannot keep up shows it.

Example:
    >>> figures(measure("http://127.0.0.1:8000", Load(clients=8, seconds=30)))["latency_p99_s"]
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from policyloop.api.sse import events
from policyloop.bench.slo import Limit
from policyloop.errors import BadInput, Problem, Unavailable
from policyloop.types import settings

WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
]
DEFAULT_SLO = {
    "latency_p99_s": Limit(max=0.5),
    "requests_per_s": Limit(min=200.0),
    "failed": Limit(max=0.0),
}  # to be set, not claims


@settings
class Load:
    """clients: closed loop, that many at once. rate: open loop instead, requests per second at random (Poisson) times. seconds: of
    measuring, after `warm_up_s` that are thrown away. words: of each prompt, about a token each. tokens: of each answer, forced where the
    server knows `ignore_eos`. shared: words at the beginning that all prompts have in common."""

    clients: int = 8
    rate: float | None = None
    seconds: float = 30.0
    warm_up_s: float = 5.0
    words: int = 64
    tokens: int = 32
    shared: int = 0
    model: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("clients", "seconds", "words", "tokens"):
            if getattr(self, name) <= 0:
                raise BadInput(f"{name} {getattr(self, name)}", "above 0", name)
        if self.rate is not None and self.rate <= 0:
            raise BadInput(f"rate {self.rate}", "requests per second above 0", "rate")


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: when it was sent, when its first and last text came, its tokens, and its status (0 = no answer)."""

    sent: float
    first: float
    last: float
    tokens: int
    status: int


def measure(url: str, load: Load, key: str | None = None) -> list[Seen]:
    """Requests that were sent in the measured time. Errors: Unavailable where nobody answers."""
    return asyncio.run(_measure(url.rstrip("/"), load, key))


async def _measure(url: str, load: Load, key: str | None) -> list[Seen]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(headers=headers, timeout=300, limits=limits) as client:
        try:
            await client.get(f"{url}/v1/models")
        except httpx.HTTPError as problem:
            raise Unavailable(f"{url} does not answer", "a running server", "URL") from problem
        begin = time.monotonic() + load.warm_up_s
        end = begin + load.seconds
        seen = await (_open(client, url, load, end) if load.rate is not None else _closed(client, url, load, end))
    return [s for s in seen if begin <= s.sent < end]


async def _closed(client: httpx.AsyncClient, url: str, load: Load, end: float) -> list[Seen]:
    async def one(choose: random.Random) -> list[Seen]:
        seen = []
        while time.monotonic() < end:
            seen.append(await _ask(client, url, load, choose))
        return seen

    rows = await asyncio.gather(*(one(random.Random(f"{load.seed}/{i}")) for i in range(load.clients)))
    return [s for row in rows for s in row]


async def _open(client: httpx.AsyncClient, url: str, load: Load, end: float) -> list[Seen]:
    assert load.rate is not None
    choose = random.Random(load.seed)
    at, tasks = time.monotonic(), []
    while at < end:
        at += choose.expovariate(load.rate)
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        tasks.append(asyncio.create_task(_ask(client, url, load, choose)))
    return await asyncio.gather(*tasks)


async def _ask(client: httpx.AsyncClient, url: str, load: Load, choose: random.Random) -> Seen:
    common = [WORDS[i % len(WORDS)] for i in range(min(load.shared, load.words))]
    prompt = " ".join([*common, *choose.choices(WORDS, k=load.words - len(common))])
    body = {"prompt": prompt, "max_tokens": load.tokens, "ignore_eos": True, "seed": choose.getrandbits(31), "stream": True}
    body |= {"stream_options": {"include_usage": True}} | ({"model": load.model} if load.model else {})
    sent = time.monotonic()
    first = last = 0.0
    tokens = status = 0
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
            status = reply.status_code
            if status == 200:
                async for chunk in events(reply.aiter_lines()):
                    last = time.monotonic()
                    first = first or last
                    tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    except (httpx.HTTPError, Problem):
        status = 0
    return Seen(sent, first, last, tokens, status)


def figures(seen: Sequence[Seen]) -> dict[str, float]:
    """`failed` counts everything but answers and refusals (429, 503); rates are over answered requests and the time they took together."""
    good = [s for s in seen if s.status == 200 and s.last]
    refused = sum(s.status in (429, 503) for s in seen)
    out: dict[str, float] = {
        "requests": len(seen),
        "answered": len(good),
        "refused": refused,
        "failed": len(seen) - len(good) - refused,
    }
    span = max((s.last for s in good), default=0.0) - min((s.sent for s in good), default=0.0)
    out["requests_per_s"] = len(good) / span if span else 0.0
    out["tokens_per_s"] = sum(s.tokens for s in good) / span if span else 0.0
    series = {
        "ttft": [s.first - s.sent for s in good],
        "per_token": [(s.last - s.first) / (s.tokens - 1) for s in good if s.tokens > 1],
        "latency": [s.last - s.sent for s in good],
    }
    for name, values in series.items():
        for q in (50, 95, 99):
            out[f"{name}_p{q}_s"] = quantile(values, q / 100)
    return out


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least a share `q` does not exceed; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, -int(-q * len(ordered) // 1) - 1)] if ordered else float("nan")
