"""`policyloop gateway CONFIG`: one address in front of many backends and versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from policyloop.gateway.server import Gateway


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

    serve(settings, say, with_console)


def with_console(gateway: Gateway) -> None:
    """The console on the admin port, with what this gateway sees of its releases."""
    from policyloop.gateway.admin import picture
    from policyloop.ui import Sources
    from policyloop.ui.app import add_console

    def live(name: str) -> dict[str, Any] | None:
        return picture(gateway.controller, gateway.desks[name]) if name in gateway.desks else None

    add_console(gateway.admin, Sources(store=gateway.settings.store, live=live, read_near=False))
