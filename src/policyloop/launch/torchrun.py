"""Several ranks on this machine through torchrun; its children's exit codes and their first cause come through.

Torchrun answers 1 for every failure. Each rank leaves its own code in a folder, so that 2 (bad input) and 75 (saved, resumable) arrive.
A SIGTERM here goes to the ranks, not to torchrun (which would kill them after its own grace): they agree, save and leave.

Example: `run(["train", "recipe.yaml"], Launch(ranks=2))` runs `python -m torch.distributed.run --nproc-per-node 2 -m policyloop train recipe.yaml`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import psutil

from policyloop.errors import Exit
from policyloop.launch import EXITS, Launch

FIRST = (Exit.BAD_INPUT, Exit.INTERRUPTED, Exit.FAILED)  # of several codes, the one that explains the others


def command(arguments: Sequence[str], launch: Launch) -> list[str]:
    """What is started."""
    own = [
        "--nnodes",
        "1",
        "--nproc-per-node",
        str(launch.ranks),
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        str(launch.port),
    ]
    # without `--` argparse takes our --run for an abbreviation of its --run-path
    return [sys.executable, "-m", "torch.distributed.run", *own, "-m", "--", "policyloop", *arguments]


def run(arguments: Sequence[str], launch: Launch) -> int:
    """Run it to its end and say how it ended."""
    with tempfile.TemporaryDirectory(prefix="policyloop-ranks-") as folder:
        # a session of its own: Ctrl-C in a terminal must reach the ranks once, through here
        process = subprocess.Popen(command(arguments, launch), env={**os.environ, EXITS: folder}, start_new_session=True)

        def forward(number: int, frame: FrameType | None) -> None:
            for rank in psutil.Process(process.pid).children():
                rank.send_signal(number)

        before = {s: signal.signal(s, forward) for s in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return ending(code, Path(folder))


def ending(code: int, folder: Path) -> int:
    """Torchrun's code, or what the ranks said of theirs; a rank that was killed has said nothing."""
    if code == 0:
        return int(Exit.DONE)
    said = {json.loads(path.read_text())[0] for path in folder.iterdir()}
    return int(next((c for c in FIRST if c in said), Exit.FAILED))
