"""`policyloop keys add|list|remove FILE`: who may ask a server, for what, and how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FILE = Annotated[
    Path, typer.Argument(help="The key file that `serve` and `gateway` are given; running servers read it again at once.")
]
NAME = Annotated[str, typer.Argument(help="What the key is called in logs, metrics and the journal.")]


def add(
    file: FILE,
    name: NAME,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="infer (default), feedback, label, promote, approve or admin.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="A model it may ask (default: every one). May be repeated.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option("--requests-per-minute", help="Requests a minute at most.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option("--tokens-per-minute", help="Prompt and answer tokens a minute at most.")
    ] = None,
) -> None:
    """Make a key; it is printed once and kept nowhere."""
    from policyloop.api.keys import KeyFile

    print(KeyFile(file).add(name, scope or ["infer"], model or ["*"], requests_per_minute, tokens_per_minute))


def list_keys(file: FILE) -> None:
    """Every key with what it may do."""
    from policyloop.api.keys import KeyFile

    for key in KeyFile(file).every():
        limits = [
            f"{n} {what}/min" for n, what in ((key.requests_per_minute, "requests"), (key.tokens_per_minute, "tokens")) if n
        ]
        print(f"{key.name}: {', '.join(key.scopes)}; models {', '.join(key.models)}{''.join('; ' + x for x in limits)}")


def remove(file: FILE, name: NAME) -> None:
    """Take a key away."""
    from policyloop.api.keys import KeyFile

    KeyFile(file).remove(name)
    print(f"removed {name}")
