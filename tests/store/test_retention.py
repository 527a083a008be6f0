"""Retention: what the rules keep, and that nothing leased, pointed at or published goes, whatever runs at the same time (drawn schedules)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from policyloop.errors import BadInput, Conflict, NotFound
from policyloop.store import Keep, Lease, Store, holding, moves, open_store
from policyloop.store.backend import Stat, chunks_of, store_error
from policyloop.store.log import check_chain
from policyloop.store.registry import GRACE_S, blob_key
from policyloop.store.retention import gc, sweep

NOW = Keep(last=1, best=0, days=0, grace_s=0)


def filled(store: Store, count: int, name: str = "answers") -> Store:
    for step in range(1, count + 1):
        figures = {"gsm8k": {"accuracy": {"value": [0.5, 0.9, 0.7, 0.6, 0.4][step % 5]}}}
        store.publish(name, {"model.safetensors": b"%d" % step}, lineage={"step": step}, evaluation=figures)
    return store


def test_what_the_rules_keep(store: Store) -> None:
    filled(store, 6)
    moves.promote(store, store.version("answers", 2), by="ann", reason="a", force=True)
    moves.promote(store, store.version("answers", 3), by="ann", reason="b", force=True)
    lease = store.lease(store.version("answers", 4), "gateway-1")
    swept = gc(store, "answers", Keep(last=1, best=1, days=0, grace_s=0), by="ann", metric="gsm8k.accuracy")
    assert (swept.announced, swept.deleted, swept.kept) == (
        (5,),
        (5,),
        (),
    )  # 1: best (0.9), 2: previous, 3: stable, 4: leased, 6: newest
    store.release(lease)
    assert gc(store, "answers", NOW, by="ann").deleted == (1, 4)
    assert store.numbers("answers") == [2, 3, 6]
    assert store.tombstone("answers", 5) is not None and check_chain(store.events("answers"), "answers") == []
    assert filled(store, 7).numbers("answers")[-1] > 6, "a number is never given twice"


def test_young_versions_stay(tmp_path: Path) -> None:
    store = filled(open_store(str(tmp_path)), 3)
    assert gc(store, "answers", Keep(last=1, best=0, days=7, grace_s=0), by="ann").announced == ()
    with pytest.raises(BadInput, match="the newest version always stays"):
        gc(store, "answers", Keep(last=0), by="ann")


def test_between_announcement_and_deletion_nobody_can_take_it(tmp_path: Path) -> None:
    store = filled(open_store(str(tmp_path)), 3)
    early = store.lease(store.version("answers", 1), "early")
    store.release(early)
    assert gc(store, "answers", Keep(last=1, best=0, days=0, grace_s=3600), by="ann").announced == (1, 2)
    assert store.numbers("answers") == [1, 2, 3]
    with pytest.raises(NotFound, match="answers@1 is being deleted"):
        store.lease(store.version("answers", 1), "late")
    with pytest.raises(Conflict, match="answers@2 is being deleted"):
        moves.promote(store, store.version("answers", 2), by="ann", reason="late", force=True)
    assert store.leases("answers") == []


def test_a_lease_from_before_brings_it_back(tmp_path: Path) -> None:
    store = filled(open_store(str(tmp_path)), 2)
    gc(store, "answers", Keep(last=1, best=0, days=0, grace_s=3600), by="ann")
    early = Lease("answers", 1, "early", store.clock() + 60)  # its holder read the log before the announcement
    store.backend.replace(store._lease_key(early), early.encode())
    assert gc(store, "answers", NOW, by="ann").kept == (1,)
    with holding(store, store.version("answers", 1), "late") as renew:
        assert renew().until > store.clock() and {lease.holder for lease in store.leases("answers")} == {"early", "late"}
    assert [lease.holder for lease in store.leases("answers")] == ["early"]


def test_bytes_go_a_day_after_the_last_manifest_that_names_them(tmp_path: Path) -> None:
    store = filled(open_store(str(tmp_path)), 2)
    shared = store.on("datasets").publish("rows", {"rows.jsonl": b"1"}, kind="dataset")  # the very bytes of answers@1
    gc(store, "answers", NOW, by="ann")
    blobs = store.backend.list("blobs")
    later = Store(store.backend, clock=lambda: store.clock() + GRACE_S + 60)
    assert sweep(store).blobs == 0 and sweep(later).blobs == 0
    assert store.on("datasets").verify(shared) == []
    (tmp_path / "datasets/rows/versions/00000001/manifest.json").unlink()
    assert sweep(later, dry_run=True).blobs == 1 and len(store.backend.list("blobs")) == len(blobs)
    assert sweep(later).bytes == 1 and len(store.backend.list("blobs")) == len(blobs) - 1


def test_what_killed_writers_left_goes_after_a_day(tmp_path: Path) -> None:
    store = filled(open_store(str(tmp_path)), 1)
    left = tmp_path / "models/answers/log/.0000000002.json.abc.tmp"
    left.write_text("{")
    sweep(store)
    assert left.exists()
    sweep(Store(store.backend, clock=lambda: store.clock() + GRACE_S + 60))
    assert not left.exists() and store.numbers("answers") == [1] and store.state("answers").n == 1


# --- drawn schedules --------------------------------------------------------------------------------------------------------


class Memory:
    """Storage in memory; before every call another actor may be let on. Deletions are judged as they happen."""

    uri = "memory"

    def __init__(self) -> None:
        self.now, self.objects = 1e9, dict[str, tuple[bytes, float]]()
        self.turn: Callable[[], None] = lambda: None
        self.judge: Callable[[str], None] = lambda key: None

    def read(self, key: str) -> bytes:
        self.turn()
        if key not in self.objects:
            raise store_error("missing", key, self.uri)
        return self.objects[key][0]

    def chunks(self, key: str) -> Iterator[bytes]:
        yield self.read(key)

    def create(self, key: str, data: bytes) -> bool:
        self.turn()
        if key in self.objects:
            return False
        self.objects[key] = (data, self.now)
        return True

    def replace(self, key: str, data: bytes | Path) -> None:
        self.turn()
        self.objects[key] = (b"".join(chunks_of(data)), self.now)

    def stat(self, key: str) -> Stat | None:
        self.turn()
        found = self.objects.get(key)
        return None if found is None else Stat(len(found[0]), found[1])

    def list(self, prefix: str, after: str = "") -> list[str]:
        self.turn()
        return sorted(k for k in self.objects if k.startswith(f"{prefix}/") and k > after)

    def folders(self, prefix: str) -> list[str]:
        self.turn()
        return sorted({k[len(prefix) + 1 :].partition("/")[0] for k in self.objects if k.startswith(f"{prefix}/")})

    def delete(self, key: str) -> None:
        self.turn()
        self.judge(key)
        self.objects.pop(key, None)

    def clean(self, before: float) -> int:
        return 0


class Baton:
    """Real threads, one at a time; who goes on is drawn at every call on the storage."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.waiting, self.failures = draw, dict[int, threading.Semaphore](), list[BaseException]()
        self.me = threading.local()

    def turn(self) -> None:
        mine = getattr(self.me, "semaphore", None)
        if mine is None:
            return
        chosen = self.draw.choice(list(self.waiting.values()))
        if chosen is not mine:
            chosen.release()
            mine.acquire()

    def run(self, actors: list[Callable[[], None]]) -> None:
        done = threading.Event()

        def live(number: int, actor: Callable[[], None]) -> None:
            self.me.semaphore = self.waiting[number]
            self.me.semaphore.acquire()
            try:
                actor()
            except BaseException as failure:
                self.failures.append(failure)
            del self.waiting[number]
            if self.waiting:
                self.draw.choice(list(self.waiting.values())).release()
            else:
                done.set()

        self.waiting = {n: threading.Semaphore(0) for n in range(len(actors))}
        threads = [threading.Thread(target=live, args=pair, daemon=True) for pair in enumerate(actors)]
        for thread in threads:
            thread.start()
        self.draw.choice(list(self.waiting.values())).release()
        assert done.wait(60)
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]


@dataclass
class World:
    """One schedule: actors over one storage, and what they hold."""

    memory: Memory
    draw: random.Random
    held: dict[str, Lease]
    deleted: int = 0

    def store(self) -> Store:
        return Store(self.memory, clock=lambda: self.memory.now)

    def judge(self, key: str) -> None:
        """No deletion of what somebody holds, points at, or (bytes) what a manifest names."""
        turn, self.memory.turn = self.memory.turn, lambda: None
        try:
            store = self.store()
            if "/versions/" in key:
                number = int(key.split("/")[3])
                held = {lease.number for lease in self.held.values() if lease.until > self.memory.now}
                assert number not in held, f"{number} is leased"
                assert number not in store.state("answers").after.pointed, f"{number} is pointed at"
                self.deleted += 1
            elif key.startswith("blobs/"):
                named = {blob_key(f.sha256) for v in store.versions("answers") for f in v.files}
                assert key not in named, "bytes of a version"
                self.deleted += 1
        finally:
            self.memory.turn = turn

    def collector(self) -> None:
        for _ in range(2):
            keep = Keep(last=self.draw.choice([1, 2]), best=0, days=0, grace_s=self.draw.choice([0, 600]))
            gc(self.store(), "answers", keep, by="gc")

    def sweeper(self) -> None:
        sweep(self.store())

    def reader(self, holder: str) -> None:
        store = self.store()
        for _ in range(2):
            version = self.draw.choice(store.versions("answers"))
            try:
                lease = store.lease(version, holder, 5000)
            except NotFound:
                continue
            self.held[holder] = lease
            store.read(version, "model.safetensors")
            self.memory.now += self.draw.choice([0, 0, 1800])
            del self.held[holder]
            store.release(lease)

    def promoter(self) -> None:
        store = self.store()
        for _ in range(2):
            try:
                version = self.draw.choice(store.versions("answers"))
                moves.promote(store, version, by="promoter", reason="", force=True)
            except (Conflict, NotFound):
                continue

    def publisher(self) -> None:
        for _ in range(2):
            number = self.draw.randrange(4)  # often bytes that are there already
            lineage = {"n": self.draw.random()}
            version = self.store().publish("answers", {"model.safetensors": b"%d" % number}, lineage=lineage, by="publisher")
            there = self.store().exists("answers", version.number)
            assert there or self.store().tombstone("answers", version.number) is not None


def schedule(seed: int) -> int:
    """One drawn schedule; returns how many deletions were judged."""
    draw = random.Random(seed)
    world = World(Memory(), draw, {})
    store = world.store()
    for step in range(4):
        store.publish("answers", {"model.safetensors": b"%d" % step}, lineage={"step": step}, by="begin")
    world.memory.now += draw.choice([0, GRACE_S / 2, 2 * GRACE_S])
    baton = Baton(draw)
    world.memory.turn, world.memory.judge = baton.turn, world.judge
    actors = [world.collector, world.collector, world.sweeper, world.promoter, world.publisher]
    actors += [lambda: world.reader("reader-a"), lambda: world.reader("reader-b")]
    baton.run(actors)
    assert check_chain(store.events("answers"), "answers") == []
    for version in store.versions("answers"):
        assert store.verify(version) == []
    assert all(store.exists("answers", n) for n in store.state("answers").after.pointed)
    return world.deleted


def campaign(seeds: range) -> None:
    deletions = sum(schedule(seed) for seed in seeds)
    assert deletions > len(seeds), "schedules in which nothing is ever deleted prove nothing"


def test_drawn_schedules() -> None:
    campaign(range(60))


@pytest.mark.slow
def test_ten_thousand_drawn_schedules() -> None:
    campaign(range(1000, 11_000))


def test_a_broken_retention_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge judges: a collector that does not look at the leases again is found out within a few hundred schedules."""
    monkeypatch.setattr(Store, "leases", lambda self, name: [])
    with pytest.raises(AssertionError, match="is leased"):
        campaign(range(400))
