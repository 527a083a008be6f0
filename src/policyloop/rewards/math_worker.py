"""The symbolic judge: math-verify in a child process that is killed when it takes too long or too much memory.

In: answer and gold, both LaTeX or plain expressions. Out: True, False, or False on a kill (a counter goes up). One child per process,
started on first use; usable from any thread and from a running event loop; it ends with its parent.

Example:
    >>> judge("\\\\frac{\\\\sqrt{2}}{2}", "1/\\\\sqrt{2}")
    True
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import select
import subprocess
import sys
import threading

LIMIT_S = 2.0
START_S = 60.0
MEMORY_BYTES = 2 << 30

killed = 0  # how many judgements ran out of time or memory in this process
_lock = threading.Lock()
_child: subprocess.Popen[bytes] | None = None


def judge(answer: str, gold: str) -> bool:
    """Whether the two expressions are equal; undecided within the limit counts as not."""
    global killed
    with _lock:
        child = _running()
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps([answer, gold]).encode() + b"\n")
            child.stdin.flush()
            line = _line(child, LIMIT_S)
        except OSError:
            line = b""
        if not line:
            killed += 1
            _stop()
            return False
        return line.strip() == b"true"


def _running() -> subprocess.Popen[bytes]:
    """The child, started and past its imports (or after a fork: a new one of this process's own)."""
    global _child
    if _child is None or _child.poll() is not None or getattr(_child, "owner", None) != os.getpid():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        _child = subprocess.Popen(
            [sys.executable, "-m", "policyloop.rewards.math_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        _child.owner = os.getpid()  # type: ignore[attr-defined]
        _line(_child, START_S)
    return _child


def _line(child: subprocess.Popen[bytes], limit_s: float) -> bytes:
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], limit_s)
    return child.stdout.readline() if ready else b""


def _stop() -> None:
    global _child
    if _child is not None and getattr(_child, "owner", None) == os.getpid():
        _child.kill()
        _child.wait()
    _child = None


atexit.register(_stop)


def main() -> None:
    """The child: one JSON line in, `true` or `false` out, until the parent's end of the pipe closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import parse, verify

    print("ready", flush=True)
    for line in sys.stdin:
        answer, gold = json.loads(line)
        try:
            a, g = (parse(f"${text.strip().strip('$')}$", parsing_timeout=0) for text in (answer, gold))
            same = bool(a) and bool(g) and verify(g, a, timeout_seconds=0)
        except Exception:  # whatever a symbolic library throws at hostile text, the answer is "not equal"
            same = False
        print("true" if same else "false", flush=True)


if __name__ == "__main__":
    main()
