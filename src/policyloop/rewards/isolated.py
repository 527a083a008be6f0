"""A user's reward function in a process of its own, which is killed when a call takes too long. Never a fork.

In: the function's path and keyword arguments. Out: what it returns. Errors: TimeoutError (killed; the next call starts a fresh process),
RuntimeError with the function's own message. One call at a time; usable from any thread; the process ends with its parent.

Example:
    >>> Isolated("my_rewards.py:brevity", timeout_s=5)(completions=["four"])
    [0.2]
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

START_S = 120.0  # the function's module may import much


class Isolated:
    """The parent's end."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self.path, self.timeout_s = path, timeout_s
        self._lock = threading.Lock()
        self._line: Connection | None = None
        self._end: weakref.finalize | None = None

    def __call__(self, **arguments: Any) -> Any:
        with self._lock:
            line = self._started()
            try:
                line.send(arguments)
                fine, value = self._answer(line, self.timeout_s)
            except (EOFError, OSError) as problem:
                self.close()
                if isinstance(problem, TimeoutError):
                    raise
                raise RuntimeError("its process died") from problem
        if not fine:
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        """Kill the process, if one runs."""
        if self._end is not None:
            self._end()
        self._line = self._end = None

    def _started(self) -> Connection:
        if self._line is None:
            self._line, theirs = Pipe()
            module = "policyloop.rewards.isolated"
            command = [sys.executable, "-P", "-m", module, str(theirs.fileno()), self.path]  # -P: a math.py here is not ours
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            child = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
            theirs.close()
            self._end = weakref.finalize(self, _stop, child, self._line)
            self._answer(self._line, START_S)
        return self._line

    def _answer(self, line: Connection, limit_s: float) -> Any:
        if not line.poll(limit_s):
            raise TimeoutError
        return line.recv()


def _stop(child: subprocess.Popen[bytes], line: Connection) -> None:
    line.close()
    child.kill()
    child.wait()


def main() -> None:
    """The child: arguments in, (True, value) or (False, message) out, until the parent's end of the line closes."""
    from policyloop.rewards.function import load_function

    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    line, function = Connection(int(sys.argv[1])), load_function(sys.argv[2])
    line.send((True, None))
    while True:
        try:
            arguments = line.recv()
        except EOFError:
            return
        try:
            value = function(**arguments)
            value = asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
            line.send((True, [_plain(v) for v in value] if isinstance(value, Iterable) else _plain(value)))
        except Exception as problem:  # the user's code may raise anything; the parent counts and shows it
            line.send((False, f"{type(problem).__name__}: {problem}"))


async def _awaited(value: Any) -> Any:
    return await value


def _plain(value: Any) -> Any:
    """Numbers of any library as numbers of Python."""
    return value if value is None or isinstance(value, str) else float(value)


def _follow(parent: int) -> None:
    """A killed parent cannot say goodbye: end when it is gone, even in the middle of a call."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
