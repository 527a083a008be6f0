"""`policyloop serve MODEL`: an inference server until SIGTERM. Every flag is a field of `ServeSettings`; `--config` reads them from YAML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer


def serve(
    model: Annotated[
        str, typer.Argument(help="A model folder, run folder, run://NAME[@STEP|best|last], catalogue name or hub id.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML with a `serve` table (and `journal`); flags go over it.")
    ] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="builtin (default), http or vllm.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="Of the other server, for --engine http.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="What clients call the model (default: MODEL).")] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on (default 127.0.0.1: this machine only).")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port (default 8000; 0 = any free one).")] = None,
    admin_host: Annotated[str | None, typer.Option("--admin-host", help="Address of the admin port (default 127.0.0.1).")] = None,
    admin_port: Annotated[int | None, typer.Option("--admin-port", help="Admin port (default 8090).")] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Key file of `policyloop keys`; without one everybody may ask.")
    ] = None,
    max_waiting: Annotated[
        int | None, typer.Option("--max-waiting", help="Answers that may wait (default 256), then 429.")
    ] = None,
    deadline_s: Annotated[float | None, typer.Option("--deadline-s", help="What a request may take (default 120).")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Where a request names no limit (default 256).")
    ] = None,
    drain_s: Annotated[
        float | None, typer.Option("--drain-s", help="What running requests have after SIGTERM (default 25).")
    ] = None,
    stuck_s: Annotated[
        float | None, typer.Option("--stuck-s", help="Heartbeat age at which /health/live says no (default 60).")
    ] = None,
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", help="NAME=MODEL: a LoRA adapter of this base. May be repeated.")
    ] = None,
    precision: Annotated[str, typer.Option("--precision", help="auto, fp32, bf16 or fp16.")] = "auto",
    template: Annotated[
        str | None, typer.Option("--template", help="`plain`, or a chat template (default: the model's own).")
    ] = None,
    journal: Annotated[
        str | None, typer.Option("--journal", help="Folder of the request journal (default: none is kept).")
    ] = None,
) -> None:
    """Serve MODEL over the OpenAI API and /predict until SIGTERM, which drains."""
    from policyloop.evaluation.model import ModelOpener
    from policyloop.journal import open_journal
    from policyloop.serve.server import serve as run

    given = dict(
        engine=engine, url=url, name=name, host=host, port=port, admin_host=admin_host, admin_port=admin_port, keys=keys,
        max_waiting=max_waiting, deadline_s=deadline_s, max_new_tokens=max_new_tokens, drain_s=drain_s, stuck_s=stuck_s,
    )  # fmt: skip
    settings, kept = _settings(config, {k: v for k, v in given.items() if v is not None}, journal)
    adapters = dict(_pair(text) for text in adapter or ())
    run(
        model,
        settings,
        ModelOpener(precision, template),
        lambda line: print(line, file=sys.stderr, flush=True),
        open_journal(kept),
        adapters,
    )


def _settings(config: Path | None, given: dict[str, Any], journal: str | None) -> tuple[Any, Any]:
    """(ServeSettings, JournalSettings or None) from a file and the flags over it."""
    from policyloop.config import build, load_yaml
    from policyloop.errors import BadInput
    from policyloop.journal import JournalSettings
    from policyloop.serve import ServeSettings

    tree = load_yaml(config) if config is not None else {}
    if odd := sorted(set(tree) - {"serve", "journal"}):
        raise BadInput(f"table {odd[0]}", "serve and journal", str(config))
    settings = build(ServeSettings, {**(tree.get("serve") or {}), **given}, "serve")
    if journal is None and "journal" not in tree:
        return settings, None
    return settings, build(
        JournalSettings, {**(tree.get("journal") or {}), **({"folder": journal} if journal else {})}, "journal"
    )


def _pair(text: str) -> tuple[str, str]:
    from policyloop.errors import BadInput

    name, sign, model = text.partition("=")
    if not (sign and name and model):
        raise BadInput(f"--adapter {text}", "NAME=MODEL", "--adapter")
    return name, model
