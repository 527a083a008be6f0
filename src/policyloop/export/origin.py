"""Where a model comes from, for the bundle's manifest: the run's data, framing, decoding, lineage and last evaluation.

In: the folder of MODEL; for a model that is no run's, a task. Out: an `Origin`, and notes on what was not to be had.

Example:
    >>> origin, notes = origin_of(resolve("run://wp@best"), prompts=16)
    >>> origin.lineage["run"], origin.parser["prompt_template"]
    ('wp', None)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policyloop.config import build
from policyloop.errors import Problem
from policyloop.evaluation.evaluate import parser_of
from policyloop.export.bundle import Origin
from policyloop.tasks import DataSettings, Task, load_task
from policyloop.training.folder import RunFolder
from policyloop.training.register import evaluation_of, lineage_of
from policyloop.types import Prompt

FRAMING = ("system", "prompt_template", "answer_format", "prompt_as")


def origin_of(
    model: Path, prompts: int, data: DataSettings | None = None, seed: int = 1, task: Task | None = None
) -> tuple[Origin, list[str]]:
    """`data`: the task of golden prompts and parser (default: the run's). A task that cannot be loaded any more leaves a note. `task`: one
    that is loaded already."""
    run = run_of(model)
    config: Mapping[str, Any] = {} if run is None else run.manifest().get("config", {})
    notes = list[str]()
    if data is None and "data" in config:
        data = build(DataSettings, config["data"], "data")
    if task is None and data is not None:
        try:
            task = load_task(data, int(config.get("training", {}).get("seed", 0)))
        except Problem as problem:
            if run is None:
                raise
            notes.append(f"the run's task cannot be loaded ({problem}); golden prompts are general ones")
    asked: Sequence[Prompt] = () if task is None else list(task.held_out(seed))[:prompts]
    lineage, evaluation = {}, {}
    if run is not None:
        step = int(model.resolve().parent.name)
        lineage, evaluation = lineage_of(run, step), evaluation_of(run, step)
    return Origin(asked, {} if task is None else parser(task), sampling(config), lineage, evaluation), notes


def run_of(model: Path) -> RunFolder | None:
    """The run whose checkpoint this is."""
    path = model.resolve()
    if path.name != "policy" or not path.parent.name.isdigit() or not (path.parents[2] / "manifest.json").exists():
        return None
    return RunFolder(path.parents[2])


def parser(task: Task) -> dict[str, Any]:
    """How a question is framed and an answer read: what a server needs to ask as training asked."""
    framing = getattr(task, "framing", None)
    return {"task": task.name, **parser_of(task), **{name: getattr(framing, name, None) for name in FRAMING}}


def sampling(config: Mapping[str, Any]) -> dict[str, Any]:
    """How the run was evaluated; nothing where there is no run."""
    evaluation, rollout = config.get("evaluation", {}), config.get("rollout", {})
    if not config:
        return {}
    return {
        "temperature": evaluation.get("temperature", 0.0),
        "top_p": 1.0,
        "max_new_tokens": evaluation.get("max_new_tokens") or rollout.get("max_new_tokens"),
        "stop": list(rollout.get("stop") or ()),
    }
