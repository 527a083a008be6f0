"""Continuous batching: one background thread steps whatever was submitted; requests join and leave between steps.

In: rows with a `show` callback. Out: their deltas, called from that thread, which starts with the first request. An answer never mixes two
versions: a publish waits until the running answers are done, and new ones wait for the publish.

The queue is fair between clients: each one's requests start where its previous one ended, in positions of work, and whoever starts first
goes first (start-time fair queueing). A second of waiting counts as AGEING positions, so that nobody waits for ever behind new clients.
Rows whose deadline passes end with `deadline`, running or waiting.

Example:
    >>> server = Server(new_batch, threading.Lock())
    >>> server.submit([rows]); server.cancel(rows)
    >>> with server.quiet(): ...                      # nothing runs in here
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from policyloop.engine.batch import Batch, cost
from policyloop.engine.rows import Row
from policyloop.errors import Unavailable

log = logging.getLogger(__name__)
IDLE_BEAT_S = 1.0
PAUSED_BEAT_S = 0.05  # rows wait, and their deadlines pass
AGEING = 64.0
MOST_CLIENTS = 4096


class Ranks:
    """Who is next. `now`: the start of what was admitted last; `ends`: where each client's last request ends."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ends: dict[str, float] = {}

    def place(self, rows: list[Row], at: float) -> None:
        client = rows[0].request.client
        start = max(self.now, self.ends.pop(client, 0.0))
        self.ends[client] = start + cost(rows)
        for row in rows:
            row.start, row.rank = start, start + AGEING * at
        if len(self.ends) > MOST_CLIENTS:
            self.ends = {name: end for name, end in self.ends.items() if end > self.now}

    def admitted(self, rows: list[Row]) -> None:
        self.now = max([self.now, *(row.start for row in rows)])


class Server:
    """`turn` is held during a step: whoever else runs the model waits for it. `open`: rows that somebody still waits for."""

    def __init__(self, new_batch: Callable[[], Batch], turn: threading.Lock) -> None:
        self.new_batch, self.turn = new_batch, turn
        self.batch = new_batch()
        self.waiting: deque[list[Row]] = deque()  # the thread's own, in order of rank
        self.arrived: list[list[Row]] = []
        self.ranks = Ranks()
        self.open: set[Row] = set()
        self.gone: set[Row] = set()
        self.news = threading.Condition()
        self.thread: threading.Thread | None = None
        self.stepping, self.paused = False, 0
        self.closing_at: float | None = None
        self.beat = time.monotonic()

    def submit(self, chunks: list[list[Row]]) -> None:
        """The rows of one request, in pieces that fit a batch. Errors: Unavailable once closing."""
        with self.news:
            if self.closing_at is not None:
                raise Unavailable("the engine is closing", "another engine")
            now = time.monotonic()
            for rows in chunks:
                self.ranks.place(rows, now)
            self.arrived.extend(chunks)
            self.open.update(row for rows in chunks for row in rows)
            if self.thread is None:
                self.beat = time.monotonic()
                self.thread = threading.Thread(target=self._work, name="policyloop-engine", daemon=True)
                self.thread.start()
            self.news.notify_all()

    def cancel(self, rows: list[Row]) -> None:
        """Nobody reads these any more: they leave before the next step."""
        with self.news:
            self.gone.update(row for row in rows if row in self.open)
            self.news.notify_all()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Inside, no row runs: running ones finish first, waiting ones stay waiting."""
        with self.news:
            self.paused += 1
            self.news.notify_all()
            self.news.wait_for(lambda: self.thread is None or not (self.stepping or self.batch.rows))
        try:
            yield
        finally:
            with self.news:
                self.paused -= 1
                self.news.notify_all()

    def close(self, drain_s: float) -> None:
        """Take nothing new, finish what is there for up to `drain_s`, then abort the rest."""
        with self.news:
            self.closing_at = time.monotonic() + drain_s
            thread = self.thread
            self.news.notify_all()
        if thread is not None:
            thread.join()

    @property
    def beat_age_s(self) -> float:
        return 0.0 if self.thread is None else time.monotonic() - self.beat

    # --- the thread ---------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _work(self) -> None:
        while True:
            try:
                if not self._go():
                    break
                with self.turn:
                    if not self.paused:
                        self.batch.admit(self.waiting)
                        self.ranks.admitted(self.batch.rows)
                    self.batch.step()
            except Exception:
                log.exception("a step failed: what was running ends with an error, the engine goes on")
                self._give_up("error")
        self._give_up("abort")
        with self.news:
            self.thread = None
            self.news.notify_all()

    def _go(self) -> bool:
        """Wait until there is something to step; False when it is time to leave."""
        with self.news:
            self.stepping = False
            while True:
                self.beat = time.monotonic()
                self._sort_out()
                busy = bool(self.batch.rows or (self.waiting and not self.paused))
                if self.closing_at is not None and (not busy or self.beat >= self.closing_at):
                    return False
                self.news.notify_all()
                if busy:
                    self.stepping = True
                    return True
                self.news.wait(IDLE_BEAT_S if not self.open else PAUSED_BEAT_S)

    def _sort_out(self) -> None:
        """New ones take their places in the queue; finished rows are closed; cancelled and late ones leave, running or waiting."""
        if self.arrived:
            self.waiting = deque(sorted([*self.waiting, *self.arrived], key=lambda rows: rows[0].rank))
            self.arrived = []
        for row in self.open - self.gone:
            if row.request.deadline is not None and row.reason is None and self.beat > row.request.deadline:
                row.end("deadline")
                self.gone.add(row)
        if self.gone:
            self.batch.drop(self.gone)
            self.waiting = deque(kept for rows in self.waiting if (kept := [r for r in rows if r not in self.gone]))
        self.open = {row for row in self.open - self.gone if row.reason is None}
        self.gone = set()

    def _give_up(self, reason: str) -> None:
        """End every row that has begun (error), or every row (abort)."""
        with self.news:
            waiting = {row for rows in (*self.waiting, *self.arrived) for row in rows}
            lost = [row for row in self.open if row.reason is None and (reason == "abort" or row not in waiting)]
            self.batch = self.new_batch()
            if reason == "abort":
                self.waiting, self.arrived = deque(), []
        for row in lost:
            row.end("abort" if reason == "abort" else "error")
