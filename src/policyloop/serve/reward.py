"""The reward service: rows of (prompt, completion, target) in, the numbers of a `rewards` table out. What `rewards.remote` asks.

    POST /score  {"rows": [{"prompt": text or messages, "completion": text, "target": text or null}]}
    ->  {"scores": [number or null], "components": [{name: number or null}], "version": "..."}

Rows of one request with the same prompt are one group (some compositions look at groups). Requests that wait together are scored
together. null = could not be scored. A full queue answers 429, a request that outlives `deadline_s` 503; scoring goes on for the others.

Example: `policyloop reward-service recipe.yaml --port 8002`
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI
from pydantic import BaseModel, ConfigDict, Field

from policyloop.api.app import Edge, make_app, needs
from policyloop.api.keys import Key, KeyFile
from policyloop.api.lifecycle import Lifecycle
from policyloop.api.meters import Meters
from policyloop.api.running import Port, run
from policyloop.config import to_tree
from policyloop.errors import Overloaded, Unavailable
from policyloop.monitor.metrics import REWARDING
from policyloop.rewards import Context, RewardsSettings
from policyloop.rewards.scorer import Scorer
from policyloop.tasks.grading import Verdict
from policyloop.types import Completion, Group, Message, Prompt, Role, settings

Infer = Annotated[Key, Depends(needs("infer"))]


@settings
class RewardServiceSettings:
    """host, port: where it listens. keys: file of API keys, null = everybody. grader: how `correct` compares, math or text.

    columns: what rows may bring in `meta` for rewards that read columns. max_new_tokens: the budget of length terms. batch_rows,
    batch_wait_s: rows scored together, and how long the first of them waits for company. max_waiting: rows that may wait, then 429.
    deadline_s: what a request may take. drain_s: what running requests have after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8002
    keys: str | None = None
    grader: Literal["math", "text"] = "math"
    columns: tuple[str, ...] = ()
    max_new_tokens: int = 1024
    batch_rows: int = 256
    batch_wait_s: float = 0.002
    max_waiting: int = 4096
    deadline_s: float = 30.0
    drain_s: float = 25.0


class Spoken(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: Role
    content: str


class RowBody(BaseModel):
    """`tokens`: length of the completion, for length terms. `meta`: columns of the row for rewards that read them."""

    model_config = ConfigDict(extra="forbid")
    prompt: str | list[Spoken]
    completion: str
    target: str | None = None
    tokens: int = Field(0, ge=0, le=10_000_000)
    finish_reason: Literal["stop", "length"] = "stop"
    meta: dict[str, Any] = Field(default_factory=dict)

    def row(self) -> tuple[Prompt, Completion]:
        content = self.prompt if isinstance(self.prompt, str) else [Message(m.role, m.content) for m in self.prompt]
        prompt = Prompt.make("reward", content, self.target, self.meta)
        return prompt, said(self.completion, self.tokens, self.finish_reason)


class ScoreBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rows: list[RowBody] = Field(min_length=1, max_length=4096)


class ScoreReply(BaseModel):
    scores: list[float | None]
    components: list[dict[str, float | None]]
    version: str


@dataclass(slots=True)
class Waiting:
    """One request: its groups, which row of the request each completion is, and where the answer goes."""

    groups: list[Group]
    order: list[int]
    answer: asyncio.Future[list[Group]]

    @property
    def rows(self) -> int:
        return len(self.order)


class Batcher:
    """Requests that wait together are scored together, in the scorer's own thread."""

    def __init__(self, scorer: Scorer, batch_rows: int, batch_wait_s: float, max_waiting: int) -> None:
        self.scorer, self.batch_rows, self.batch_wait_s, self.max_waiting = scorer, batch_rows, batch_wait_s, max_waiting
        self.queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self.waiting = 0

    async def score(self, groups: list[Group], order: list[int]) -> list[Group]:
        """Errors: Overloaded when too many rows wait."""
        if self.waiting + len(order) > self.max_waiting:
            raise Overloaded(f"{self.waiting} rows wait to be scored", retry_after_s=1)
        request = Waiting(groups, order, asyncio.get_running_loop().create_future())
        self.waiting += request.rows
        self.queue.put_nowait(request)
        return await request.answer

    async def work(self) -> None:
        """For ever: one batch after the other. A batch that fails fails its own requests only."""
        while True:
            batch = [await self.queue.get()]
            until = time.monotonic() + self.batch_wait_s
            while sum(r.rows for r in batch) < self.batch_rows and (left := until - time.monotonic()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self.queue.get(), left))
                except TimeoutError:
                    break
            self.waiting -= sum(r.rows for r in batch)
            try:
                scored, _ = await asyncio.to_thread(self.scorer.score, [g for r in batch for g in r.groups])
            except Exception as problem:
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(problem)
                continue
            at = 0
            for request in batch:
                if not request.answer.done():  # the client may have left
                    request.answer.set_result(scored[at : at + len(request.groups)])
                at += len(request.groups)


def grouped(rows: Sequence[RowBody]) -> tuple[list[Group], list[int]]:
    """Rows of one prompt as one group; `order[i]` is the row that completion i of the groups, read in turn, came from."""
    by_prompt: dict[str, list[tuple[int, Prompt, Completion]]] = {}
    for i, row in enumerate(rows):
        prompt, completion = row.row()
        by_prompt.setdefault(prompt.id, []).append((i, prompt, completion))
    groups = [Group(uid, members[0][1], tuple(c for _, _, c in members)) for uid, members in by_prompt.items()]
    return groups, [i for members in by_prompt.values() for i, _, _ in members]


def application(edge: Edge, batcher: Batcher, deadline_s: float) -> FastAPI:
    app = make_app("policyloop reward-service", edge, lambda: edge.meters.set("rows_waiting", batcher.waiting))

    async def score(body: ScoreBody, key: Infer) -> ScoreReply:
        began = time.monotonic()
        with edge.life.request():
            groups, order = grouped(body.rows)
            try:
                scored = await asyncio.wait_for(batcher.score(groups, order), deadline_s)
            except TimeoutError:
                raise Unavailable(f"scoring took longer than {deadline_s:g} s", retry_after_s=1) from None
        reply = replied(scored, order, edge.life.version())
        edge.meters.observe("request_duration_seconds", time.monotonic() - began, route="/score")
        edge.meters.add("rows_total", len(order))
        edge.meters.add("rows_unscored_total", sum(s is None for s in reply.scores))
        return reply

    app.add_api_route("/score", score, methods=["POST"], response_model=ScoreReply)
    return app


def replied(groups: Sequence[Group], order: Sequence[int], version: str) -> ScoreReply:
    """Scores back in the order of the request's rows. NaN (does not apply) and None (could not be scored) are null."""
    scores: list[float | None] = [None] * len(order)
    components: list[dict[str, float | None]] = [{} for _ in order]
    for row, score in zip(order, (s for g in groups for s in g.scores), strict=True):
        scores[row] = _number(score.value)
        components[row] = {name: _number(value) for name, value in score.components.items()}
    return ScoreReply(scores=scores, components=components, version=version)


def _number(value: float | None) -> float | None:
    return None if value is None or value != value else float(value)


def version_of(rewards: RewardsSettings) -> str:
    """Changes whenever the table does."""
    return "rewards-" + hashlib.sha256(json.dumps(to_tree(rewards), sort_keys=True, default=str).encode()).hexdigest()[:12]


def serve(rewards: RewardsSettings, service: RewardServiceSettings, say: Callable[[str], None]) -> None:
    """Until SIGTERM, which drains. Errors: BadInput for rewards that cannot be made."""
    verdict = Verdict(service.grader)
    scorer = Scorer(rewards, Context(verdict, frozenset(service.columns) | {"answer", "target"}, service.max_new_tokens))
    edge = Edge(Lifecycle(), KeyFile(Path(service.keys) if service.keys else None), Meters(REWARDING))
    version = version_of(rewards)
    edge.life.version = lambda: version
    batcher = Batcher(scorer, service.batch_rows, service.batch_wait_s, service.max_waiting)
    tasks: list[asyncio.Task[None]] = []

    async def start() -> None:
        await asyncio.to_thread(scorer.score, [_warm()])  # workers, models and judges load before the service says it is ready
        tasks.append(asyncio.create_task(batcher.work()))

    async def stop() -> None:
        for task in tasks:
            task.cancel()

    app = application(edge, batcher, service.deadline_s)
    run([Port(app, service.host, service.port)], edge.life, service.drain_s, start, stop, say)


def _warm() -> Group:
    prompt = Prompt.make("reward", "1+1=", "2")
    return Group("warm", prompt, (said("2", 1, "stop"),))


def said(text: str, tokens: int, finish_reason: Literal["stop", "length"]) -> Completion:
    """A completion of which only the text and the number of tokens are known."""
    return Completion((), (0,) * tokens, (math.nan,) * tokens, finish_reason, "none", text)
