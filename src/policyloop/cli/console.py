"""How long work speaks: plain lines on stdout, flushed, whatever the terminal; progress on stderr, so that stdout holds results alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 10.0  # between two plain lines of progress


def printer() -> Callable[[str], None]:
    """Lines that appear at once, also through a pipe or in a container's log."""
    return lambda text: print(text, flush=True)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """`progress(done, of)`: a bar on a terminal, elsewhere a plain line now and then."""
    if not sys.stderr.isatty():
        yield _lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, of: shown.update(task, completed=done, total=of)


def _lines(what: str) -> Callable[[int, int], None]:
    began = last = time.monotonic()

    def progress(done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done < of and now - last >= EVERY_S:
            last = now
            print(f"{what}: {done}/{of}, {(now - began) / done * (of - done):.0f} s left", file=sys.stderr, flush=True)

    return progress
