"""`policyloop value-service` and `policyloop reward-service`: what training may ask over the network, until SIGTERM."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 for other machines.")]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def value_service(
    model_path: Annotated[
        str, typer.Option("--model-path", help="A `value_net/` folder of a checkpoint, or a model to start from.")
    ],
    port: Annotated[int, typer.Option("--port", help="gRPC port; 0 = any free one.")] = 50051,
    max_workers: Annotated[int, typer.Option("--max-workers", min=1, help="Calls that are taken at once.")] = 8,
    host: Host = "127.0.0.1",
    precision: Annotated[str, typer.Option("--precision", help="auto, fp32, bf16 (AMP) or fp16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    lr: Annotated[float, typer.Option("--lr", help="Of the critic's own optimizer.")] = 1e-5,
) -> None:
    """Values for token sequences, and the critic's optimizer steps, over gRPC."""
    from policyloop.serve.value import serve

    serve(model_path, host, port, max_workers, precision, device, lr, _say)


def reward_service(
    config: Annotated[Path, typer.Argument(help="YAML with a `rewards` table (a recipe will do) and perhaps `reward_service`.")],
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; 0.0.0.0 for other machines.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port (default 8002; 0 = any free one).")] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="Key file of `policyloop keys`; without one everybody may ask.")
    ] = None,
) -> None:
    """Score rows by a rewards table over HTTP: POST /score."""
    from policyloop.config import build, load_yaml
    from policyloop.errors import BadInput
    from policyloop.rewards import RewardsSettings
    from policyloop.serve.reward import RewardServiceSettings, serve
    from policyloop.spellings import translate

    tree = load_yaml(config)
    if "rewards" not in tree:
        raise BadInput("the config has no rewards", "rewards: [...]", str(config))
    given = {k: v for k, v in {"host": host, "port": port, "keys": keys}.items() if v is not None}
    settings = build(RewardServiceSettings, {**(tree.get("reward_service") or {}), **given}, "reward_service")
    serve(build(RewardsSettings, translate(tree)["rewards"], "rewards"), settings, _say)
