"""The loops beside the traffic: read each model's log, check backends, warm a candidate, share evidence, move the release.

Every replica runs them. What moves is one create-only event: of several replicas that decide the same, one writes and the others read it. A
replica's evidence lies in the store under its own name, so that each one judges by all of it and a killed one loses at most a second of it.

    models/<name>/evidence/<release>/<replica>.json      counts and sums, written whole

Example:
    >>> controller = Controller(settings, store, desks, upstream); await controller.run()
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from policyloop.errors import BadInput, Conflict, No, NotFound, Problem, StoreError
from policyloop.gateway import GatewaySettings, Strategy
from policyloop.gateway import release as machine
from policyloop.gateway.backends import Backend, eject_outliers
from policyloop.gateway.desk import Desk
from policyloop.gateway.fit import Size, need
from policyloop.gateway.release import Move, Seen
from policyloop.gateway.upstream import Failed, Upstream
from policyloop.gateway.verdict import IN_SHADOW, Verdict, judge, merged, to_json
from policyloop.store import After, State, Store, Version

log = logging.getLogger(__name__)
SHARE_S = 1.0  # how often evidence is written and the others' is read
WARMUP_TRIES = 5
REPORTED = "x-policyloop-version"
Told = Callable[[str, State], None]


class Controller:
    def __init__(self, settings: GatewaySettings, store: Store, desks: Mapping[str, Desk], upstream: Upstream) -> None:
        self.settings, self.store, self.desks, self.upstream = settings, store, desks, upstream
        self.replica = f"gateway-{uuid.uuid4().hex[:12]}"
        self.beat = time.monotonic()
        self.told: Told = lambda name, state: None  # every event this replica wrote
        self.ejected: Callable[[Backend], None] = lambda backend: None
        self.store_down = ""
        self._judged: dict[str, tuple[Any, Verdict, Verdict]] = {}
        self._written: dict[str, list[dict[str, Any]]] = {}
        self._locks = {name: asyncio.Lock() for name in desks}

    # --- loops --------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Whatever must be known before the first request. Errors: Problem of the store or the config."""
        for desk in self.desks.values():
            await asyncio.to_thread(self.register_endpoints, desk)
            await self.read(desk)
        await asyncio.gather(*(self.check(b) for desk in self.desks.values() for b in desk.backends))

    async def run(self) -> None:
        """Until cancelled."""
        s = self.settings
        every: list[Awaitable[None]] = []
        for desk in self.desks.values():
            every.append(self._often(s.poll_s, lambda d=desk: self.read(d)))
            every.append(self._often(s.poll_s, lambda d=desk: self.tick(d)))
            every.append(self._often(SHARE_S, lambda d=desk: self.share(d)))
            every += [self._often(b.health.interval_s, lambda b=b: self.check(b)) for b in desk.backends]
        await asyncio.gather(*every)

    async def _often(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await do()
                self.beat = time.monotonic()
            except StoreError as problem:
                if not self.store_down:  # once per outage; traffic goes on as the log said last
                    log.warning("store: %s", problem)
                self.store_down = str(problem)
            except Problem as problem:
                log.warning("%s", problem)
            except Exception:  # one model's trouble must not stop the others' loops
                log.exception("controller")
            await asyncio.sleep(seconds)

    # --- the log ------------------------------------------------------------------------------------------------------------

    async def read(self, desk: Desk) -> None:
        desk.adopt(await asyncio.to_thread(self.store.state, desk.name))
        self.store_down = ""

    async def write(self, desk: Desk, move: Move, by: str) -> State:
        """One event on the state this replica knows; it counts here at once. Errors: Conflict when somebody was faster."""
        before = desk.state
        state = await asyncio.to_thread(
            self.store.append,
            desk.name,
            move.type,
            by,
            move.reason,
            lambda after: move.after,
            version=move.version,
            report=move.report,
            expect_n=before.n,
        )
        desk.adopt(state)
        self.told(desk.name, state)
        return state

    async def act(self, desk: Desk, by: str, decide: Callable[[State], Move]) -> State:
        """A person's move: decided on the newest state, again if somebody was faster. Errors: what `decide` says, Conflict."""
        for _ in range(8):
            await self.read(desk)
            try:
                return await self.write(desk, decide(desk.state), by)
            except Conflict as problem:
                if "has moved on" not in problem.given:
                    raise
        raise Conflict(f"{desk.name} moves too fast", "another try", "the release")

    # --- the release --------------------------------------------------------------------------------------------------------

    async def tick(self, desk: Desk) -> None:
        now = time.monotonic()
        eject = [
            b
            for version in {b.version for b in desk.backends}
            for b in eject_outliers([x for x in desk.backends if x.version == version], now)
        ]
        for backend in eject:
            self.ejected(backend)
        desk.evidence.close_idle(now)
        state = desk.state
        if state.after.release.get("state", "idle") not in machine.ACTIVE:
            await self._nominated(desk)
            return
        if state.after.release["state"] == "warming":
            await self.warm_up(desk)
        move = machine.tick(state.after, self.seen(desk), desk.route.release, time.time())
        if move is not None and state is desk.state:
            try:
                await self.write(desk, move, "gateway")
                await self.share(desk)
            except Conflict:  # another replica was faster
                await self.read(desk)

    def seen(self, desk: Desk) -> Seen:
        """What is known of the version on trial: the candidate, or while watching the new stable one."""
        r, rules, now = desk.state.after.release, desk.route.release, time.monotonic()
        stable, candidate = r.get("stable"), r.get("candidate")
        usable = desk.usable(candidate, now)
        ready = [b for b in usable if (r.get("id", ""), b.name) in desk.warm]
        seen = Seen(ready=len(ready), healthy=len(usable), broken=desk.why_cold)
        if stable is None or candidate is None:
            return seen
        arms, share = desk.arms(), desk.routing.share if r.get("state") == "canary" else None
        asked = (desk.routing, rules, arms)
        if self._judged.get(desk.name, (None,))[0] != asked:  # nothing new: the verdict stands
            shadow = judge(arms, stable, candidate, rules, only=IN_SHADOW)
            self._judged[desk.name] = (asked, judge(arms, stable, candidate, rules, share=share), shadow)
        _, verdict, shadow = self._judged[desk.name]
        return Seen(seen.ready, seen.healthy, seen.broken, verdict, shadow)

    async def _nominated(self, desk: Desk) -> None:
        """The log's `candidate` alias begins a release; one that cannot be is refused in the log, with the reason."""
        after = desk.state.after
        candidate = after.aliases.get("candidate")
        if candidate is None or not desk.route.release.auto or candidate == after.aliases.get("stable"):
            return
        try:
            move = await asyncio.to_thread(self.begin, desk, desk.state, candidate, by=desk.state.by)
        except Problem as problem:
            aliases = {k: v for k, v in after.aliases.items() if k != "candidate"}
            move = Move("refused", str(problem), machine.replace(after, aliases=aliases), candidate)
        try:
            await self.write(desk, move, "gateway")
        except Conflict:
            await self.read(desk)

    def begin(
        self, desk: Desk, state: State, candidate: int, *, by: str, strategy: Strategy | None = None, force: bool = False
    ) -> Move:
        """idle -> staged, after the arithmetic. Errors: BadInput, Conflict, No, NotFound."""
        rules, stable = desk.route.release, state.stable
        chosen = strategy or rules.strategy
        version = self.store.version(desk.name, candidate)
        if failed := version.failed_checks():
            raise No(f"{version} did not pass {', '.join(failed)}", "another version", "the version")
        before = None if stable is None else self.size(self.store.version(desk.name, stable))
        fits = need(chosen, before, self.size(version), rules.memory)
        id = f"{candidate}-{uuid.uuid4().hex[:8]}"
        move = machine.begin(state.after, candidate, rules, time.time(), by=by, id=id, strategy=chosen, force=force)
        return Move(move.type, f"{move.reason}; {fits}", move.after, move.version)

    def size(self, version: Version) -> Size:
        if version.kind != "lora" or not version.base:
            return Size(version.size)
        base = dict(version.base)
        name, number = base.get("name"), base.get("number")
        known = isinstance(name, str) and isinstance(number, int) and self.store.exists(name, number)
        weight = self.store.version(str(name), int(number or 0)).size if known else int(base.get("size") or 0)
        return Size(version.size, json.dumps(base, sort_keys=True), weight)

    # --- backends -----------------------------------------------------------------------------------------------------------

    async def check(self, backend: Backend) -> None:
        """One active check; what the backend says it serves is believed unless the config says otherwise."""
        h = backend.health
        try:
            reply = await self._get(backend, h.path, h.timeout_s)
            if reply[0] == 404:
                reply = await self._get(backend, "/v1/models", h.timeout_s)
        except Failed as problem:
            backend.checked(False, problem.reason)
            return
        status, reported = reply
        fine = status < 400 or status == 401  # an endpoint that wants a key for /v1/models is there
        backend.checked(fine, "" if fine else f"{h.path} answers {status}")
        if backend.settings.version is None and reported is not None:
            number = reported.rpartition("@")[2]
            backend.version = int(number) if number.isdigit() else None

    async def _get(self, backend: Backend, path: str, timeout_s: float) -> tuple[int, str | None]:
        reply = await self.upstream.send(backend, path, None, {"accept-encoding": "identity"}, timeout_s, timeout_s)
        try:
            await reply.body()
        finally:
            reply.close()
        return reply.status, reply.headers.get(REPORTED)

    async def warm_up(self, desk: Desk) -> None:
        """The warm-up prompts to every backend of the candidate that has not answered them; one that keeps failing is broken."""
        r, now = desk.state.after.release, time.monotonic()
        for backend in desk.usable(r["candidate"], now):
            if (r["id"], backend.name) in desk.warm:
                continue
            why = await self._warm(desk, backend)
            if why == "":
                desk.warm.add((r["id"], backend.name))
                continue
            desk.warm_failures += 1
            if desk.warm_failures >= WARMUP_TRIES:
                desk.why_cold = f"warm-up at {backend.name}: {why}"

    async def _warm(self, desk: Desk, backend: Backend) -> str:
        name = backend.settings.model or desk.name
        for prompt in desk.route.release.warmup_prompts:
            body = json.dumps({"model": name, "messages": [{"role": "user", "content": prompt}], "max_tokens": 4}).encode()
            headers = {"content-type": "application/json", "accept-encoding": "identity"}
            try:
                reply = await self.upstream.send(backend, "/v1/chat/completions", body, headers, desk.route.timeout_s)
                try:
                    await reply.body()
                finally:
                    reply.close()
            except Failed as problem:
                return problem.reason
            if reply.status >= 400:
                return f"status {reply.status}"
        return ""

    # --- evidence of all replicas -------------------------------------------------------------------------------------------

    async def share(self, desk: Desk) -> None:
        """This replica's counts into the store when they changed; the others' out of it. Nothing while no release runs."""
        release = desk.routing.release
        if not release:
            return
        folder = f"{self.store.shelf}/{desk.name}/evidence/{release}"
        async with self._locks[desk.name]:  # in order: what was read earlier must not come later
            await asyncio.to_thread(self._exchange, desk, folder, release, to_json(desk.evidence.arms()))

    def _exchange(self, desk: Desk, folder: str, release: str, rows: list[dict[str, Any]]) -> None:
        mine, backend = f"{folder}/{self.replica}.json", self.store.backend
        if rows and self._written.get(release) != rows:
            backend.replace(mine, json.dumps(rows).encode())
            self._written = {release: rows}
        others = [json.loads(backend.read(key)) for key in backend.list(folder) if key != mine]
        if desk.routing.release == release:
            desk.others = merged(others)

    # --- endpoints that policyloop never trained ----------------------------------------------------------------------------

    def register_endpoints(self, desk: Desk) -> None:
        """Versions named in the config that the store has never heard of: a record of the endpoint stands for each, and the lowest of
        a name without a log becomes stable. Errors: BadInput where the store gives another number."""
        numbers = sorted({b.version for b in desk.route.backends if b.version is not None})
        known = self.store.numbers(desk.name)
        for number in numbers:
            if number in known:
                continue
            urls = [b.url + (f"#{b.model}" if b.model else "") for b in desk.route.backends if b.version == number]
            record = {"endpoint": urls, "version": number}
            made = self.store.publish(desk.name, {"endpoint.json": json.dumps(record).encode()}, lineage=record, by="gateway")
            if not self.store.exists(desk.name, number):  # another replica may have been faster with it
                raise BadInput(
                    f"{desk.name}: the config speaks of version {number}, the store's next one is {made.number}",
                    f"one of {', '.join(map(str, [*known, made.number]))}",
                    "gateway.models[].backends[].version",
                )
        if numbers and not known and self.store.state(desk.name).stable is None:
            first = numbers[0]
            change: Callable[[After], After] = lambda a: machine.replace(a, aliases={"stable": first, **a.aliases})  # noqa: E731
            self.store.append(
                desk.name, "promoted", "gateway", "the first endpoint of the config", change, version=first, tries=8
            )


def desk_of(desks: Mapping[str, Desk], name: str) -> Desk:
    """Errors: NotFound."""
    if name not in desks:
        raise NotFound(f"no model {name}", ", ".join(desks), "the model")
    return desks[name]
