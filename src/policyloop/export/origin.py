"""Where a model comes from, for the bundle's manifest: the run's data, framing, decoding, lineage and last evaluation.

In: the folder of MODEL; for a model that is no run's, a task. Out: an `Origin`, and notes on what was not to be had.

Example:
    >>> origin, notes = origin_of(resolve("run://wp@best"), prompts=16)
    >>> origin.lineage["run"], origin.parser["prompt_template"]
    ('wp', None)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from policyloop.config import build
from policyloop.errors import Problem
from policyloop.evaluation.evaluate import parser_of
from policyloop.export.bundle import Origin
from policyloop.models.policy import BASE_NOTE
from policyloop.tasks import DataSettings, Task, load_task
from policyloop.training.folder import RunFolder
from policyloop.types import Prompt

FRAMING = ("system", "prompt_template", "answer_format", "prompt_as")


def origin_of(model: Path, prompts: int, data: DataSettings | None = None, seed: int = 1) -> tuple[Origin, list[str]]:
    """`data`: the task of golden prompts and parser (default: the run's). A task that cannot be loaded any more leaves a note."""
    run = run_of(model)
    config: Mapping[str, Any] = {} if run is None else run.manifest().get("config", {})
    notes = list[str]()
    if data is None and "data" in config:
        data = build(DataSettings, config["data"], "data")
    task = None
    if data is not None:
        try:
            task = load_task(data, int(config.get("training", {}).get("seed", 0)))
        except Problem as problem:
            if run is None:
                raise
            notes.append(f"the run's task cannot be loaded ({problem}); golden prompts are general ones")
    asked: Sequence[Prompt] = () if task is None else list(task.held_out(seed))[:prompts]
    lineage, evaluation = ({}, {}) if run is None else (lineage_of(run, model, asked), evaluation_of(run, model))
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


def lineage_of(run: RunFolder, model: Path, prompts: Sequence[Prompt]) -> dict[str, Any]:
    manifest, note = run.manifest(), model / BASE_NOTE
    config = manifest.get("config", {})
    parent = (
        json.loads(note.read_text(encoding="utf-8"))
        if note.exists()
        else {"name": config.get("model", {}).get("base_model_path")}
    )
    return {
        "run": run.path.resolve().name,
        "step": int(model.resolve().parent.name),
        "config": manifest.get("config_sha256"),
        "data": {"task": config.get("data", {}).get("task"), "held_out_sha256": _digest(prompts)},
        "parent": parent,
        "code": manifest.get("code"),
        "seed": manifest.get("seed"),
    }


def _digest(prompts: Sequence[Prompt]) -> str | None:
    return hashlib.sha256("\n".join(p.id for p in prompts).encode()).hexdigest() if prompts else None


def evaluation_of(run: RunFolder, model: Path) -> dict[str, Any]:
    """The held-out evaluation of this step, as the manifest has it: {suite: {metric, value, n, interval}}."""
    step = int(model.resolve().parent.name)
    rows = [r for r in run.rows("events.jsonl") if r.get("kind") == "evaluation" and r.get("step") == step]
    if not rows:
        return {}
    found = {k.removeprefix("eval/"): v for k, v in rows[-1].items()}
    suite = run.manifest().get("config", {}).get("data", {}).get("task", "held_out")
    interval = [found.get("accuracy_low"), found.get("accuracy_high")]
    return {suite: {"metric": "accuracy", "value": found.get("accuracy"), "n": found.get("n"), "interval": interval}}
