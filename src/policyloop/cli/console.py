"""How long work speaks: one plain line at a time, on stdout, flushed, whatever the terminal."""

from __future__ import annotations

from collections.abc import Callable


def printer() -> Callable[[str], None]:
    """Lines that appear at once, also through a pipe or in a container's log."""
    return lambda text: print(text, flush=True)
