"""The symbolic judge: math-verify in a child process that is killed when it takes too long or too much memory.

In: answer and gold, both LaTeX or plain expressions. Out: True or False; False on a kill too (`killed` goes up). One child per process,
started on first use, for any thread and a running event loop; after a fork each side has its own; it ends with its parent.

Example:
    >>> judge("\\\\frac{\\\\sqrt{2}}{2}", "1/\\\\sqrt{2}")
    True
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import threading

LIMIT_S = 2.0
START_S = 60.0
MEMORY_BYTES = 2 << 30
DIGITS = 40  # to which irrational values must agree: exact for every practical purpose, no tolerance for rounded decimals

log = logging.getLogger(__name__)
killed = 0  # how many judgements ran out of time or memory in this process
_lock = threading.Lock()
_child: subprocess.Popen[bytes] | None = None


def judge(answer: str, gold: str) -> bool:
    """Whether the two expressions are equal; undecided within the limit counts as not."""
    global killed
    with _lock:
        try:
            child = _running()
            assert child.stdin is not None
            child.stdin.write(json.dumps([answer, gold]).encode() + b"\n")
            line = _line(child, LIMIT_S)
        except OSError:
            line = b""
        if not line:
            killed += 1
            if killed == 1:
                log.warning("the symbolic judge was stopped after %g s on %.80r; such answers count as wrong", LIMIT_S, answer)
            _stop()
            return False
        return line.strip() == b"true"


def _running() -> subprocess.Popen[bytes]:
    """The child, started and past its imports: what they take is not charged to the judgement."""
    global _child
    if _child is None or _child.poll() is not None:
        _stop()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [
            sys.executable,
            "-P",
            "-m",
            "policyloop.rewards.math_worker",
        ]  # -P: a math.py in the current folder is not ours
        _child = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        _line(_child, START_S)
    return _child


def _line(child: subprocess.Popen[bytes], limit_s: float) -> bytes:
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        return child.stdout.readline() if selector.select(limit_s) else b""


def _stop() -> None:
    global _child
    if _child is not None:
        _child.kill()
        _child.wait()
        for pipe in (_child.stdin, _child.stdout):
            if pipe is not None:
                pipe.close()
    _child = None


def _forget() -> None:
    """After a fork: the lock may be held by a thread that is not here, and the child is the parent's."""
    global _lock, _child
    _lock = threading.Lock()
    if _child is not None:
        for pipe in (_child.stdin, _child.stdout):
            if pipe is not None:
                pipe.close()
        _child.returncode = 0
    _child = None


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)


# --- the child --------------------------------------------------------------------------------------------------------------

_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")


def exact(text: str) -> str:
    r"""Decimals as fractions (0.5 -> \frac{5}{10}), roots, pi and plus-minus in LaTeX, so that nothing becomes a float."""
    text = _DECIMAL.sub(lambda m: rf"\frac{{{(m[1] + m[2]).lstrip('0') or '0'}}}{{1{'0' * len(m[2])}}}", text)
    text = re.sub(r"√\s*(\d+|[a-z])", r"\\sqrt{\1}", text).replace("±", r"\pm ").replace("×", r"\times ")
    return re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi ", text).strip().strip("$")


def main() -> None:
    """One JSON line in, `true` or `false` out, until the parent's end of the pipe closes; an alarm should the parent be gone."""
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from math_verify import parse, verify

    print("ready", flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, 2 * LIMIT_S)
        try:
            answer, gold = (parse(f"${exact(text)}$", parsing_timeout=0) for text in json.loads(line))
            same = bool(answer) and bool(gold)
            same = same and verify(gold, answer, float_rounding=DIGITS - 5, numeric_precision=DIGITS, timeout_seconds=0)
        except Exception:  # whatever a symbolic library throws at hostile text, the answer is "not equal"
            same = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        print("true" if same else "false", flush=True)


if __name__ == "__main__":
    main()
