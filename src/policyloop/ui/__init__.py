"""The console: one static page and the JSON it reads. Run folders and a store in, what a person wants to see out. No torch.

    GET  /                                      the page; everything after # in its address is the state of the page
    GET  /ui/api/start · runs · runs/{run} · runs/{run}/steps/{step}[/groups/{n}] · runs/{run}/map
    GET  /ui/api/models · models/{name} · models/{name}/reports/{digest} · feedback · trace/{request_id} · me
    POST /ui/api/models/{name}/promote · rollback {version?, reason, force?, n}

Reading is for whoever sits at this machine, or for a key that may promote, approve or administer. A move always needs a key with scope
promote, and names the event of the log that the person was looking at: if somebody moved first, it is refused.

Example:
    >>> app = make_console(Sources(runs=Path("runs"), store="store"), KeyFile(Path("keys.json")))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Live = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where to look. `store` None = $POLICYLOOP_STORE, else ./store. `live`: what a gateway in this process knows beyond the log."""

    runs: Path = Path("runs")
    store: str | None = None
    live: Live = lambda name: None
    read_near: bool = True  # whoever is on loopback may read, even where there is a key file


def find_runs(root: Path) -> dict[str, Path]:
    """Name -> folder: `root` itself if it is a run, else the runs in it, two levels deep."""
    if (root / "manifest.json").exists() and (root / "config.yaml").exists():
        return {root.resolve().name: root}
    found = [
        p.parent for depth in ("*", "*/*") for p in root.glob(f"{depth}/manifest.json") if (p.parent / "config.yaml").exists()
    ]
    return {str(p.relative_to(root)).replace("/", "~"): p for p in sorted(found)}
