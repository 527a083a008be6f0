"""`policyloop gateway CONFIG`: one address in front of many backends and versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def gateway(
    config: Annotated[Path, typer.Argument(help="A YAML file with a gateway table.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: gateway.port=9000. May be repeated.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Read the config, say what it means, start nothing.")] = False,
) -> None:
    """Route, balance and release until SIGTERM; then drain."""
    from policyloop.cli.console import printer
    from policyloop.config import load_yaml, override
    from policyloop.gateway import load

    tree = load_yaml(config)
    for assignment in set_ or []:
        tree = override(tree, assignment)
    settings, say = load(tree), printer()
    if check:
        for route in settings.models:
            versions = sorted({str(b.version or "as it reports") for b in route.backends})
            say(
                f"{route.name}: {len(route.backends)} backends ({', '.join(versions)}), {route.release.mode}, {route.release.strategy}"
            )
        return
    from policyloop.gateway.server import serve

    serve(settings, say)
