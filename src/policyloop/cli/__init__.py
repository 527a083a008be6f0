"""The command line. One file per verb; each verb's module loads only when that verb is called, so `--help` needs no torch.

In: argv. Out: an exit code (errors.Exit). Only this room and `api` translate a Problem into a sentence.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from policyloop.errors import Exit, Problem

CALLED = "policyloop.called"

# verb -> module:function and its one line of help; the order is that of a first visit
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo:demo", "The whole circle on a real model: measure, train, compare, gate, store, serve, feed back."),
    "init": ("show:init", "Write a recipe to start from."),
    "show": ("show:show", "Resolve a recipe; --plan foresees the run."),
    "train": ("train:train", "Train from a recipe; resumable at any moment."),
    "improve": ("improve:improve", "Rounds: curate, train, gate, release, watch; resumable at any stage."),
    "evaluate": ("evaluate:evaluate", "Held-out accuracy with its interval."),
    "compare": ("evaluate:compare", "Paired comparison: SHIP, HOLD or INCONCLUSIVE."),
    "gate": ("gate:gate", "May a candidate replace the stable version? SHIP, HOLD or INCONCLUSIVE."),
    "report": ("evaluate:report", "One HTML page of runs, or one group explained."),
    "ui": ("ui:ui", "The console: what serves, what trains, what waits for you."),
    "doctor": ("doctor:doctor", "What is wrong with a run or this machine, and which key to change."),
    "trace": ("models:trace", "Where a version comes from; what became of a request."),
    "export": ("export:export", "A bundle that stands alone, checked against the model it was made of."),
    "gateway": ("gateway:gateway", "One address in front of many backends: balancing, canary, rollback."),
    "chat": ("evaluate:chat", "Ask a model; --versus shows two side by side."),
    "serve": ("serve:serve", "Serve a model: OpenAI API and /predict."),
    "value-service": ("services:value_service", "A critic behind gRPC, for PPO on other machines."),
    "reward-service": ("services:reward_service", "A rewards table behind HTTP."),
}
GROUPS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "data": (
        "Look at data before training on it.",
        {
            "check": ("data:check", "Rows, columns, duplicates, overlap, unreadable answers."),
            "convert": ("data:convert", "Any accepted format to policyloop JSONL."),
            "preview": ("data:preview", "Rendered text, token ids, supervised tokens, parsed answer."),
        },
    ),
    "models": (
        "Models by name, and the versions of a store.",
        {
            "pull": ("models:pull", "Fetch a catalogue model, check it, convert it once."),
            "list": ("models:list_models", "What there is and what is here."),
            "show": ("models:show", "One version: files, lineage, figures, history."),
            "diff": ("models:diff", "What differs between two versions."),
            "promote": ("models:promote", "Make a version stable."),
            "rollback": ("models:rollback", "Back to the previous stable version."),
            "gc": ("models:gc", "Retention: what may go, goes."),
            "audit": ("models:audit", "Everything that ever happened to a model."),
            "verify": ("models:verify", "Every byte and every event, compared."),
            "import": ("models:import_model", "A checkpoint enters the store."),
            "migrate": ("models:migrate", "Manifests of an older schema, rewritten."),
        },
    ),
    "bench": (
        "Measure this machine.",
        {
            "rollout": ("bench:rollout", "Sampling: tokens per second, time over the floor."),
            "train": ("bench:train", "A whole step: rollout, update, publish."),
            "serve": ("bench:serve", "Load on a running server: latency, rates, limits."),
        },
    ),
    "collect": (
        "From served requests and feedback to training data.",
        {
            "curate": ("collect:curate", "Join, judge, dedupe: a new set in the store."),
            "stats": ("collect:stats", "What a curation would hold, and what is new."),
            "forget": ("collect:forget", "Everything of one person out again."),
        },
    ),
    "reward": (
        "Rewards.",
        {
            "try": ("reward:try_rewards", "Score rows with gold, empty, shuffled and wrong answers."),
            "agree": ("reward:agree", "Ask the recipe's judge about labelled pairs."),
        },
    ),
}


def _command(name: str, target: str, help: str) -> Any:
    """The verb's own Typer command, built when it is needed."""
    module, _, function = target.partition(":")
    app = typer.Typer(add_completion=False)
    app.command(name, help=help)(getattr(importlib.import_module(f"policyloop.cli.{module}"), function))
    command = get_command(app)
    command.name = name
    return command


class Lazy(TyperGroup):
    """A group whose commands are known by name and loaded by use. Typer's own types for contexts and commands are private, hence Any."""

    def __init__(self, verbs: dict[str, tuple[str, str]], groups: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.verbs, self.groups = verbs, groups or {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.verbs, *self.groups]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = cmd_name.replace("_", "-")
        if name in self.groups:
            help, verbs = self.groups[name]
            return Lazy(verbs, name=name, help=help, no_args_is_help=True)
        if name not in self.verbs:
            return None
        target, help = self.verbs[name]
        return _command(name, target, help) if ctx.meta.get(CALLED) else TyperCommand(name, help=help, short_help=help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        ctx.meta[CALLED] = True  # a verb is being run, not listed
        return super().resolve_command(ctx, args)


def flags_alike(arguments: Sequence[str]) -> list[str]:
    """`--batch_size` is `--batch-size`; values are left as they are."""
    out = []
    for a in arguments:
        if a.startswith("--") and a != "--":
            flag, sign, value = a.partition("=")
            a = "--" + flag[2:].replace("_", "-") + sign + value
        out.append(a)
    return out


def app() -> Any:
    return Lazy(
        VERBS,
        GROUPS,
        name="policyloop",
        help="Train, evaluate and compare language models by reinforcement learning.",
        no_args_is_help=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: exits with one of errors.Exit."""
    if sys.platform == "win32":
        print("policyloop runs on Linux and macOS; on Windows use WSL2 (docs/install.md)", file=sys.stderr)
        sys.exit(Exit.BAD_INPUT)
    _quiet()
    sys.exit(_run(app(), flags_alike(sys.argv[1:] if arguments is None else arguments)))


def _quiet() -> None:
    """torchao, where it is installed, tells of CUDA kernels it could not load whenever transformers looks for it."""
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    logging.getLogger("torchao").setLevel(logging.ERROR)


def _run(command: Any, arguments: list[str]) -> int:
    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    for noisy in ("torchao", "torch.utils._pytree"):  # kernels for chips that are not here
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        result = command.main(arguments, prog_name="policyloop", standalone_mode=False)
        return int(result) if isinstance(result, int) else Exit.DONE
    except Problem as problem:
        say(f"policyloop: {problem}")
        return problem.exit_code
    except TyperException as problem:
        sentence = problem.format_message() if hasattr(problem, "format_message") else str(problem)
        say(f"policyloop: {sentence} (try --help)")
        return Exit.BAD_INPUT
    except (typer.Abort, KeyboardInterrupt):
        say("policyloop: stopped")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
