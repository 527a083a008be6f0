"""The journal of one process: rows in from any thread, redacted, written in batches by one thread, shipped by another.

`offer` never waits (a request must not): False = refused and counted. `append` returns when the row is on disk: what feedback is
acknowledged with. Nothing acknowledged is lost to a kill at any moment; what a dead process left is shipped by the next one.

Example:
    >>> with Journal(JournalSettings(folder="journal", store="store")) as journal:
    ...     journal.offer({"request_id": "r1", "prompt": "2+3=", "text": "5", ...})
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from policyloop.errors import BadInput, Problem, Unavailable
from policyloop.journal import Feedback, JournalSettings, Record
from policyloop.journal.redact import Redactor
from policyloop.journal.segments import Drawer, encode
from policyloop.journal.shipping import Shelf

BATCH = 256
Item = Record | Feedback
Done = Future[None] | None


@dataclass
class Counts:
    """What became of rows since the start. `refused`: queue or disk full. `unsampled`: not chosen by `sample`, or `store: false`."""

    written: int = 0
    redacted: int = 0
    refused: int = 0
    unsampled: int = 0
    shipped: int = 0
    failed_shipments: int = 0


class Journal:
    def __init__(self, chosen: JournalSettings, *, start_shipping: bool = True) -> None:
        self.settings, self.counts = chosen, Counts()
        self.redactor = Redactor(chosen.phone_regions, chosen.recognisers) if chosen.redact else None
        self.root = Path(chosen.folder)
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.drawer = Drawer.create(self.root)
        except OSError as problem:
            raise BadInput(f"the journal cannot be written ({problem})", "a folder of your own", "journal.folder") from problem
        self.shelf = Shelf.at(chosen.store)
        self._queue: queue.Queue[tuple[Item | None, Done]] = queue.Queue(chosen.queue)
        self._opened = time.monotonic()
        self._sealed = threading.Event()
        self._closing = False
        self._full, self._one_ships = False, threading.Lock()
        self._writer = threading.Thread(target=self._write, name="journal", daemon=True)
        self._writer.start()
        self._shipper = threading.Thread(target=self._ship_on, name="journal-shipping", daemon=True)
        self._shipping = start_shipping
        if start_shipping:
            self._shipper.start()

    # --- in -----------------------------------------------------------------------------------------------------------------

    def offer(self, row: Mapping[str, Any] | Record) -> bool:
        """Write this down when there is time. False: not written (queue full), and counted. Never raises for a full disk."""
        if self._closing or not self._wanted(row):
            return not self._closing
        try:
            self._queue.put_nowait((row if isinstance(row, Record) else Record.of(row), None))
        except queue.Full:
            self.counts.refused += 1
            return False
        return True

    def append(self, row: Mapping[str, Any] | Item, timeout_s: float = 10.0) -> None:
        """Write this down now; on disk when this returns. Errors: Unavailable (disk or queue full, closed)."""
        if self._closing:
            raise Unavailable("the journal is closed", "an open one")
        item = row if isinstance(row, (Record, Feedback)) else Record.of(row)
        if isinstance(item, Record) and not self._wanted(row if isinstance(row, Mapping) else item):
            return
        done: Future[None] = Future()
        try:
            self._queue.put((item, done), timeout=timeout_s)
            done.result(timeout_s)
        except (queue.Full, TimeoutError, OSError) as problem:
            raise Unavailable(
                f"the journal cannot take it now ({problem or type(problem).__name__})", "another try later"
            ) from problem

    def _wanted(self, row: Mapping[str, Any] | Record) -> bool:
        """By the request id's hash, so that every process chooses the same requests; `store: false` is the caller's own no."""
        asked = row if isinstance(row, Mapping) else {"request_id": row.request_id}
        if asked.get("store") is False or _unit(str(asked.get("request_id", ""))) >= self.settings.sample:
            self.counts.unsampled += 1
            return False
        return True

    # --- the writing thread -------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        ended = False
        while not ended:
            rows, asked, ended = self._batch()
            if rows:
                self._put(rows)
            old = time.monotonic() - self._opened >= self.settings.segment_s
            if self.drawer.bytes >= self.settings.segment_bytes or (old and self.drawer.bytes) or asked or ended:
                self._seal()
            for done in asked:
                done.set_result(None)

    def _batch(self) -> tuple[list[tuple[Item, Done]], list[Future[None]], bool]:
        """Rows that have come in (up to BATCH, at least a moment waited for), flushes asked for, and whether that was the end."""
        rows: list[tuple[Item, Done]] = []
        asked: list[Future[None]] = []
        try:
            item, done = self._queue.get(timeout=min(1.0, self.settings.segment_s))
            while item is not None or done is not None:
                if item is not None:
                    rows.append((item, done))
                elif done is not None:
                    asked.append(done)
                if len(rows) == BATCH:
                    break
                item, done = self._queue.get_nowait()
            else:
                return rows, asked, True
        except queue.Empty:
            pass
        return rows, asked, False

    def _put(self, batch: list[tuple[Item, Done]]) -> None:
        """One write and one fsync for all of them, then they are acknowledged. A row that cannot be redacted is refused alone."""
        lines: list[bytes] = []
        written: list[Done] = []
        for item, done in batch:
            try:
                lines.append(self._line(item))
                written.append(done)
            except Exception as problem:  # of a user's recogniser, say: it must not end the thread that writes all others
                self._refuse([done], problem)
        try:
            if self._full:
                raise OSError("the journal's folder holds as much as it may (max_local_bytes)")
            if not self.drawer.bytes:
                self._opened = time.monotonic()
            self.drawer.append(b"".join(lines), self.settings.fsync == "always")
        except OSError as problem:
            self._refuse(written, problem)
            return
        self.counts.written += len(written)
        for done in written:
            if done is not None:
                done.set_result(None)

    def _refuse(self, waiting: list[Done], problem: Exception) -> None:
        self.counts.refused += len(waiting)
        for done in waiting:
            if done is not None:
                done.set_exception(OSError(str(problem) or type(problem).__name__))

    def _line(self, item: Item) -> bytes:
        if isinstance(item, Feedback):
            return encode("feedback", (redact_feedback(item, self.redactor) if self.redactor else item).row())
        if self.redactor is not None:
            item = redact_record(item, self.redactor)
        self.counts.redacted += item.redacted
        return encode("records", item.row())

    def _seal(self) -> None:
        self.drawer.seal()
        self.drawer.bytes = 0
        self._opened = time.monotonic()
        self._full = self._too_much()
        self._sealed.set()

    # --- shipping -----------------------------------------------------------------------------------------------------------

    def _ship_on(self) -> None:
        while not self._closing:
            self.ship()
            self._sealed.wait(timeout=max(1.0, self.settings.segment_s))
            self._sealed.clear()

    def ship(self) -> int:
        """Sealed segments to the store, those of dead processes too. A store that is away is tried again next time; nothing is lost."""
        shipped = 0
        with self._one_ships:
            try:
                shipped += ship_left_behind(self.root, self.shelf) + empty(self.drawer, self.shelf)
                self.shelf.expire(self.settings.max_age_days)
            except (Problem, OSError):
                self.counts.failed_shipments += 1
        self.counts.shipped += shipped
        self._full = self._too_much()
        return shipped

    def _too_much(self) -> bool:
        sizes = 0
        for path in self.root.glob("*/*.sealed"):
            with suppress(FileNotFoundError):  # shipped meanwhile
                sizes += path.stat().st_size
        return sizes >= self.settings.max_local_bytes

    def flush(self, timeout_s: float = 30.0) -> int:
        """Everything offered so far written, sealed and shipped. Returns the rows shipped by this call."""
        done: Future[None] = Future()
        self._queue.put((None, done))
        done.result(timeout_s)
        return self.ship()

    def close(self) -> None:
        """Write what waits, seal, ship."""
        if self._closing:
            return
        self._closing = True
        self._queue.put((None, None))
        self._writer.join()
        self._sealed.set()
        if self._shipping:
            self._shipper.join()
            self.ship()
        self.drawer.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def ship_left_behind(root: Path, shelf: Shelf) -> int:
    """What processes that are gone have left under `root`."""
    shipped = 0
    for drawer in Drawer.left_behind(root):
        try:
            shipped += empty(drawer, shelf)
        finally:
            drawer.close()
    return shipped


def empty(drawer: Drawer, shelf: Shelf) -> int:
    """Sealed segments into the store; each is deleted here once it lies there."""
    shipped = 0
    for path in drawer.waiting():
        shipped += shelf.ship(path, f"{drawer.folder.name}-{path.stem}")
        path.unlink()
    return shipped


# --- redaction of rows ------------------------------------------------------------------------------------------------------


def redact_record(record: Record, redactor: Redactor) -> Record:
    """The record without personal data. Where any was found, or where there are ids but no text to look at, ids and log-probs go."""
    messages = [{"role": "", "content": record.prompt}] if isinstance(record.prompt, str) else record.prompt
    shown, found = redactor.pieces([*(m["content"] for m in messages), record.text])
    sampling = redactor.anything(record.sampling)
    target = None if record.target is None else redactor.text(record.target)
    unseen = bool(record.token_ids and not record.text) or bool(
        record.prompt_token_ids and not any(m["content"] for m in messages)
    )
    found = found or unseen or sampling != record.sampling or target != record.target
    prompt: Any = (
        shown[0]
        if isinstance(record.prompt, str)
        else [{"role": redactor.text(m["role"]), "content": c} for m, c in zip(messages, shown[:-1], strict=True)]
    )
    clean = replace(
        record,
        prompt=prompt,
        text=shown[-1],
        sampling=sampling,
        target=target,
        redacted=record.redacted or found,
        **{name: redactor.name(getattr(record, name)) for name in ("request_id", "key", "user", "session")},
    )
    return replace(clean, prompt_token_ids=[], token_ids=[], logprobs=[]) if clean.redacted else clean


def redact_feedback(feedback: Feedback, redactor: Redactor) -> Feedback:
    value = redactor.text(feedback.value) if isinstance(feedback.value, str) else feedback.value
    names = {name: redactor.name(getattr(feedback, name)) for name in ("request_id", "key", "user")}
    return replace(feedback, value=value, **names)


def _unit(key: str) -> float:
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest(), "big") / 2**64
