"""`policyloop ui [RUN|FOLDER]`: the console over run folders and a store, until SIGTERM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ui(
    runs: Annotated[Path, typer.Argument(help="A run folder, or the folder that holds runs.")] = Path("runs"),
    store: Annotated[
        str | None, typer.Option("--store", help="Where versions lie (default: POLICYLOOP_STORE, else store).")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Key file (`policyloop keys`): who may promote and roll back.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Other than loopback: readers need a key as well.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 = any free one.")] = 8090,
) -> None:
    """What serves, what trains, what waits for you: in a browser."""
    from policyloop.api.keys import KeyFile
    from policyloop.api.lifecycle import Lifecycle
    from policyloop.api.running import Port, run
    from policyloop.cli.console import printer
    from policyloop.errors import NotFound
    from policyloop.ui import Sources
    from policyloop.ui.app import make_console

    if runs != Path("runs") and not runs.is_dir():
        raise NotFound(f"{runs} is no folder", "a run folder, or the folder that holds runs", "RUN")
    life = Lifecycle()
    app = make_console(Sources(runs, store), KeyFile(keys), life)
    run([Port(app, host, port)], life, 1.0, say=printer())
