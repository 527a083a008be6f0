"""Where rewards run: one event loop in a thread of its own, and threads that a hanging call can hold for ever.

In: coroutines and plain calls. Out: their results. One loop for the whole process, so that a client a user's async function keeps between
steps stays usable; plain code waits for it, a running event loop (a notebook) does not matter.

Example:
    >>> run(in_thread(lambda: 2 + 3))
    5
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

R = TypeVar("R")


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run to the end from plain code, whether or not an event loop is running here."""
    waiting = asyncio.run_coroutine_threadsafe(work, _loop(os.getpid()))
    try:
        return waiting.result()
    except BaseException:
        waiting.cancel()
        raise


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="rewards").start()
    return loop


async def in_thread(call: Callable[[], R]) -> R:
    """The call's result, from a daemon thread: if it hangs, neither the loop nor the interpreter's exit waits for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def settle(value: Any, problem: BaseException | None) -> None:
        if done.cancelled():
            return
        if problem is None:
            done.set_result(value)
        else:
            done.set_exception(problem)

    def work() -> None:
        value, problem = None, None
        try:
            value = call()
        except BaseException as raised:  # also sys.exit() in a user's function: it ends the call, not the run
            problem = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, daemon=True, name="reward").start()
    return await done
