"""Whether a release fits the machines before anything starts, and what the way back costs. Pure arithmetic.

    double    stable and candidate both loaded: the way back is now
    adapter   one engine, two LoRA adapters on the same base: the way back is now
    replace   the candidate takes the stable version's place: the way back is cold, it must be loaded again

Example:
    >>> need("double", Size(8 * GB), Size(8 * GB), MemorySettings(capacity_bytes=12 * GB))
    policyloop.errors.BadInput: release by double needs 16.0 GB (8.0 GB + 8.0 GB) ...
"""

from __future__ import annotations

from dataclasses import dataclass

from policyloop.errors import BadInput
from policyloop.gateway import MemorySettings, Strategy

GB = 10**9


@dataclass(frozen=True, slots=True)
class Size:
    """What a version weighs when loaded; an adapter also names what it stands on."""

    own_bytes: int
    base: str | None = None  # the base's identity; set = this is an adapter
    base_bytes: int = 0


def need(strategy: Strategy, stable: Size | None, candidate: Size, memory: MemorySettings) -> str:
    """The arithmetic in one line. Errors: BadInput for what does not fit or cannot be done that way."""
    if strategy == "adapter":
        _check_adapters(stable, candidate)
    kv = memory.kv_bytes
    parts = {
        "double": [_whole(stable), _whole(candidate), *([kv] * (2 if stable else 1))],
        "adapter": [candidate.base_bytes, stable.own_bytes if stable else 0, candidate.own_bytes, kv],
        "replace": [max(_whole(stable), _whole(candidate)), kv],
    }[strategy]
    total = sum(parts)
    line = f"{strategy}: {_gb(total)} = {' + '.join(_gb(p) for p in parts if p)}"
    if memory.capacity_bytes is None:
        return f"{line}; release.memory.capacity_bytes is not set, so nothing is refused for its size"
    if total > memory.capacity_bytes:
        cheaper = {
            "double": "strategy: replace (the way back is cold then)",
            "adapter": "a smaller adapter or more memory",
            "replace": "more memory or a smaller model",
        }
        raise BadInput(f"{line} do not fit into {_gb(memory.capacity_bytes)}", cheaper[strategy], "release.strategy")
    return f"{line} of {_gb(memory.capacity_bytes)}"


def way_back(strategy: str, warm_backends: int, warm_s: float | None) -> dict[str, object]:
    """How one gets back: `now` (loaded and ready), `cold` (must be loaded first; seconds as measured when it was last warmed), `none`."""
    if warm_backends:
        return {"kind": "now", "seconds": 0.0, "backends": warm_backends}
    if strategy == "replace":
        return {"kind": "cold", "seconds": warm_s, "backends": 0}
    return {"kind": "none", "seconds": None, "backends": 0}


def _check_adapters(stable: Size | None, candidate: Size) -> None:
    where = "release.strategy"
    if candidate.base is None:
        raise BadInput("the candidate is no adapter", "double or replace, or a LoRA version", where)
    if stable is not None and stable.base != candidate.base:
        raise BadInput(
            f"stable stands on {stable.base}, the candidate on {candidate.base}", "two adapters on one base, or double", where
        )


def _whole(size: Size | None) -> int:
    return 0 if size is None else size.own_bytes + size.base_bytes


def _gb(n: int) -> str:
    return f"{n / GB:.1f} GB" if n >= GB / 10 else f"{n / 10**6:.1f} MB"
