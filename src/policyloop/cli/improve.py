"""`policyloop improve CONFIG`: one command and one YAML from data to a served version, and from its feedback to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policyloop.cli.console import printer


def improve(
    config: Annotated[Path, typer.Argument(help="A YAML with an `improve` table (docs/improve.md).")],
    once: Annotated[bool, typer.Option("--once", help="One round, or none if none is due; not for ever.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Open a round whatever the triggers say (with --once).")] = False,
) -> None:
    """Curate, train, gate, release, watch; the first round from data. The same command goes on after a crash. Exit code 75: interrupted."""
    from policyloop.errors import BadInput
    from policyloop.rounds import Improver, load_improve

    if now and not once:
        raise BadInput("--now without --once", "--once --now: one round", "--now")
    improver = Improver(load_improve(config), printer())
    if once:
        improver.once(force=now)
    else:
        improver.forever()
