"""Launchers start commands on other processes; they import no stage and no torch.

In: the arguments of `policyloop train`. Out: an exit code of errors.Exit.

Example:
    >>> LAUNCHERS["torchrun"](["train", "recipe.yaml", "--run", "runs/a"], Launch(ranks=2, port=29500))
    0
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from policyloop.errors import Exit, Problem

EXITS = "POLICYLOOP_EXITS"  # a folder where each rank leaves its exit code, which torchrun would turn into 1


@dataclass(frozen=True, slots=True)
class Launch:
    """ranks: processes on this machine, one per GPU where there are GPUs. port: of the rendezvous."""

    ranks: int = 1
    port: int = 29500


def _torchrun(arguments: Sequence[str], launch: Launch) -> int:
    from policyloop.launch.torchrun import run

    return run(arguments, launch)


LAUNCHERS: dict[str, Callable[[Sequence[str], Launch], int] | None] = {"local": None, "torchrun": _torchrun}  # None: this process


def is_rank() -> bool:
    """Whether a launcher has already made this process one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def noting_exit() -> Iterator[None]:
    """Inside a rank: what it ends with is left for the launcher."""
    code, said = int(Exit.FAILED), ""
    try:
        yield
        code = int(Exit.DONE)
    except Problem as problem:
        code, said = int(problem.exit_code), str(problem)
        raise
    finally:
        if folder := os.environ.get(EXITS):
            Path(folder, os.environ.get("RANK", "0")).write_text(json.dumps([code, said]))
