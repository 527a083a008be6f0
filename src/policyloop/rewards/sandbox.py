"""Somebody else's Python in a process of its own: no network, no writing outside its folder, no further processes, limited time and memory.

In: pieces of source, run one after the other in one namespace. Out: what happened. Linux only (seccomp and Landlock; both without
privileges): where the kernel refuses them nothing is run. Answers and tests share an interpreter, so this guards the machine, not the
score against an answer that sets out to cheat; `passed` needs a secret that is only read after the answer ran, so an early exit never passes.

Example:
    >>> run(["def add(a, b): return a + b", "assert add(2, 3) == 5"], Limits(timeout_s=5))
    Outcome(passed=True, why='')
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

OUTPUT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """timeout_s: wall and processor time. memory_mb: address space. A file may hold 16 MB."""

    timeout_s: float = 10.0
    memory_mb: int = 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: bool
    why: str


def available() -> str | None:
    """None, or why nothing can be run here."""
    if sys.platform != "linux":
        return f"the sandbox needs Linux, this is {sys.platform}"
    if platform.machine() not in NUMBERS:
        return f"the sandbox does not know the system calls of {platform.machine()}"
    ruleset = ctypes.CDLL(None, use_errno=True).syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    return None if ruleset >= 1 else "this kernel has no Landlock (5.13 or newer)"


def run(pieces: Sequence[str], limits: Limits) -> Outcome:
    """Run the pieces; `passed` when all of them ran to their end within the limits."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="policyloop-code-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), folder, str(limits.timeout_s), str(limits.memory_mb)]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        try:
            out, err = child.communicate(json.dumps({"pieces": list(pieces), "secret": secret}).encode(), limits.timeout_s + 5.0)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"took longer than {limits.timeout_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # whatever it started in its group goes with it
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
    if out[-len(secret) - 1 :] == f"{secret}\n".encode():
        return Outcome(True, "")
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM):
        return Outcome(False, f"took longer than {limits.timeout_s:g} s")
    said = err[-OUTPUT_BYTES:].decode("utf-8", "replace").strip().splitlines()
    return Outcome(False, said[-1] if said else f"ended with exit code {child.returncode}")


# --- the child --------------------------------------------------------------------------------------------------------------

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
ALLOW, ERRNO_EPERM, ERRNO_ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
WRITING = 0x1FF2  # every right of Landlock ABI 1 but executing, reading files and listing folders
# socket, connect, kill, tkill, ptrace, process_vm_readv, process_vm_writev, pidfd_send_signal, io_uring_setup, setsid, mount, unshare, bpf,
# execve, execveat, and on x86_64 fork and vfork; then clone and clone3, which threads need
NUMBERS: dict[str, tuple[int, tuple[int, ...], int, int]] = {
    "x86_64": (0xC000003E, (41, 42, 62, 200, 101, 310, 311, 424, 425, 112, 165, 272, 321, 59, 322, 57, 58), 56, 435),
    "aarch64": (0xC00000B7, (198, 203, 129, 130, 117, 270, 271, 424, 425, 157, 40, 97, 280, 221, 281), 220, 435),
}
CLONE_THREAD = 0x10000


def forbid_calls() -> None:
    """A seccomp filter: the listed calls fail with EPERM, and clone unless it makes a thread; other architectures' numbers (x32 too) always do."""
    arch, numbers, clone, clone3 = NUMBERS[platform.machine()]
    load, equal, at_least, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, arch), (give, 0, 0, ERRNO_EPERM), (load, 0, 0, 0), (at_least, 0, 1, 0x40000000)]
    code.append((give, 0, 0, ERRNO_EPERM))
    for number in numbers:
        code += [(equal, 0, 1, number), (give, 0, 0, ERRNO_EPERM)]
    code += [(equal, 0, 1, clone3), (give, 0, 0, ERRNO_ENOSYS)]  # the C library then takes clone, whose flags can be seen
    code += [(equal, 0, 3, clone), (load, 0, 0, 16), (has, 1, 0, CLONE_THREAD), (give, 0, 0, ERRNO_EPERM), (give, 0, 0, ALLOW)]
    packed = b"".join(struct.pack("HBBI", *line) for line in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def forbid_writing(folder: str) -> None:
    """Landlock: files are made, changed and removed below `folder` only."""
    libc = ctypes.CDLL(None, use_errno=True)
    handled = struct.pack("Q", WRITING)
    ruleset = libc.syscall(LANDLOCK_CREATE, handled, ctypes.c_size_t(len(handled)), 0)
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", WRITING, place)
    if ruleset < 0 or libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0) or libc.syscall(LANDLOCK_RESTRICT, ruleset, 0):
        raise OSError(ctypes.get_errno(), "Landlock")
    os.close(place)
    os.close(ruleset)


def main() -> None:
    """Limits first, then the pieces; the secret is written when the last one has ended."""
    folder, timeout_s, memory_mb = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    told = json.loads(sys.stdin.buffer.read())
    seconds, memory = max(1, int(timeout_s + 0.999)), memory_mb << 20
    bounds = {"CPU": seconds, "AS": memory, "FSIZE": 16 << 20, "NOFILE": 64, "CORE": 0}
    for name, bound in bounds.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (bound, bound))
    signal.setitimer(signal.ITIMER_REAL, timeout_s)  # SIGALRM's default action ends the process
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")
    forbid_writing(folder)
    forbid_calls()
    quiet = open(os.devnull)  # noqa: SIM115 - the answer's standard input for its whole life
    os.dup2(quiet.fileno(), 0)
    report = os.dup(1)
    os.dup2(2, 1)  # what the answer prints is not the verdict
    space: dict[str, object] = {"__name__": "__main__"}
    for number, piece in enumerate(told["pieces"]):
        exec(compile(piece, f"<piece {number}>", "exec"), space)
    os.write(report, told["secret"].encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
