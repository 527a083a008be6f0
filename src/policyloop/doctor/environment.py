"""The machine before a run: Python, libraries against their lower bounds, torch build, cores, memory, disk, cache, network, ports.

In: nothing. Out: one `Check` each. Looks only: the cache folder gets one small file that is removed again, ports are bound and freed.

Example:
    >>> [c.line() for c in environment()][0]
    'ok    python: 3.12.3 on Linux x86_64'
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import socket
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil

from policyloop.doctor import Check
from policyloop.store import cache_root

PORTS = {
    8000: "serve",
    8002: "reward service",
    8080: "gateway",
    8090: "admin and console",
    9400: "run metrics",
    29500: "rendezvous",
}
GB = 1e9


def environment() -> list[Check]:
    """What `policyloop doctor env` looks at."""
    return [_python(), *_libraries(), *_torch(), _cores(), _memory(), _disk(), _cache()]


def network() -> list[Check]:
    """What `policyloop doctor net` looks at."""
    return [_loopback(), *_ports(), _hub()]


# --- software ---------------------------------------------------------------------------------------------------------------


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() not in ("Linux", "Darwin"):
        return Check("python", "fail", found, "Linux, macOS or WSL2 (docs/install.md)")
    return Check("python", "ok", found)


def bounds() -> dict[str, tuple[str, bool]]:
    """Library -> (lower bound, needed): from the installed package, or from pyproject.toml of a checkout."""
    try:
        listed = importlib.metadata.requires("policyloop") or []
    except importlib.metadata.PackageNotFoundError:
        project = Path(__file__).parents[3] / "pyproject.toml"
        about = tomllib.loads(project.read_text(encoding="utf-8"))["project"] if project.exists() else {}
        extras = about.get("optional-dependencies", {})
        listed = [
            *about.get("dependencies", []),
            *(f"{r}; extra" for name, rows in extras.items() if name != "dev" for r in rows),
        ]
    found: dict[str, tuple[str, bool]] = {}
    for text in listed:
        match = re.match(r"([A-Za-z0-9._-]+)[^>;]*>=\s*([0-9.]+)", text)
        if match and match[1] != "policyloop":
            found.setdefault(match[1], (match[2], "extra" not in text))
    return found


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"[0-9.]+", version)
    return tuple(int(n) for n in release[0].strip(".").split(".")) if release else ()


def _libraries() -> Iterator[Check]:
    """One line for all that is well, one for each that is not; a library of an extra may be absent."""
    well, table = [], bounds()
    for name, (bound, needed) in table.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if needed:
                yield Check(name, "fail", "not installed", f"pip install '{name}>={bound}'")
            continue
        a, b = _numbers(version), _numbers(bound)
        if a < b[: len(a)] or (len(a) < len(b) and a < b):
            verdict = "fail" if needed else "warn"
            yield Check(name, verdict, f"{version} is below {bound}", f"pip install --upgrade '{name}>={bound}'")
        else:
            well.append(name)
    yield Check("libraries", "ok", f"{len(well)} of {len(table)} are installed and recent enough (the rest belong to extras)")


def _torch() -> Iterator[Check]:
    try:
        import torch
    except ImportError as problem:
        yield Check("torch", "fail", f"cannot be imported: {problem}", "pip install torch (docs/install.md has the CPU build)")
        return
    if torch.cuda.is_available():
        name, bf16 = torch.cuda.get_device_name(0), torch.cuda.is_bf16_supported()
        yield Check("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.device_count()} x {name}")
        if not bf16:
            yield Check("bf16", "note", "this GPU has no bf16", "training.precision: auto takes fp16 with a scaler")
    elif torch.version.cuda:
        yield Check(
            "torch",
            "warn",
            f"{torch.__version__} is built for CUDA {torch.version.cuda}, and no GPU answers",
            "install a driver for that CUDA (nvidia-smi must list the GPU), or the CPU build of torch",
        )
    elif shutil.which("nvidia-smi"):
        yield Check(
            "torch", "warn", f"{torch.__version__} is a CPU build on a machine with a GPU", "install the CUDA build of torch"
        )
    else:
        yield Check("torch", "ok", f"{torch.__version__}, CPU build, {torch.backends.cpu.get_cpu_capability()}")


# --- the machine ------------------------------------------------------------------------------------------------------------


def _cores() -> Check:
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, load = os.environ.get("OMP_NUM_THREADS"), os.getloadavg()[0]
    found = f"{mine} usable, OMP_NUM_THREADS {threads or 'unset'}, load {load:.1f}"
    if threads and threads.isdigit() and int(threads) > mine:
        return Check("cores", "warn", found, f"OMP_NUM_THREADS={mine}: more threads than cores wait for each other")
    if load > mine + 1:
        return Check("cores", "note", found, "other jobs use these cores: times will vary, results will not")
    return Check("cores", "ok", found)


def _memory() -> Check:
    free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    found = f"{free / GB:.1f} of {total / GB:.1f} GB free"
    if free < 1.5 * GB:
        return Check(
            "memory",
            "fail",
            found,
            "close other programs; SmolLM2 needs 1.5 GB, `policyloop show CONFIG --plan` says what yours needs",
        )
    return Check("memory", "ok", found)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / GB:.1f} GB free where runs are written ({Path.cwd()})"
    if free < 0.2 * GB:
        return Check(
            "disk", "fail", found, "free some space, or --run on another disk; training.keep_last: 1 keeps one checkpoint"
        )
    if free < 5 * GB:
        return Check(
            "disk", "warn", found, "a checkpoint of a whole 1.5B model takes 18 GB, of a LoRA 0.1 GB: look at training.keep_last"
        )
    return Check("disk", "ok", found)


def _cache() -> Check:
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root):
            pass
    except OSError as problem:
        return Check("cache", "fail", f"{root} cannot be written ({problem.strerror})", "POLICYLOOP_CACHE=/a/folder/of/yours")
    return Check("cache", "ok", f"{root} can be written")


# --- network ----------------------------------------------------------------------------------------------------------------


def _loopback() -> Check:
    """Connect to oneself: containers without a loopback interface break the rendezvous and every local service."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            began = time.perf_counter()
            with socket.create_connection(server.getsockname(), timeout=2):
                took = time.perf_counter() - began
    except OSError as problem:
        return Check(
            "loopback", "fail", f"127.0.0.1 does not answer ({problem})", "bring the lo interface up (ip link set lo up)"
        )
    return Check("loopback", "ok", f"127.0.0.1 answers in {1000 * took:.1f} ms")


def _ports() -> Iterator[Check]:
    free = []
    for port, use in PORTS.items():
        try:
            with socket.create_server(("127.0.0.1", port)):
                free.append(str(port))
        except OSError:
            yield Check(
                f"port {port}", "warn", f"taken (it is the default of: {use})", "stop what listens there, or choose another port"
            )
    yield Check("ports", "ok", f"free: {', '.join(free) or 'none'}")


def _hub() -> Check:
    """Models and data by hub id need it; a folder, a catalogue model that is here and made-up tasks do not."""
    where = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Check("hub", "ok", "offline mode (HF_HUB_OFFLINE): models and data come from folders and caches")
    import httpx

    try:
        httpx.head(where, timeout=3.0, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        found = f"{where} does not answer ({type(problem).__name__})"
        return Check(
            "hub", "warn", found, "HF_ENDPOINT=<a mirror>, HTTPS_PROXY, or HF_HUB_OFFLINE=1 with models and data in folders"
        )
    return Check("hub", "ok", f"{where} answers")
