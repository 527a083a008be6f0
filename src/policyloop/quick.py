"""The Python twin of a recipe: the same defaults, the same run folder, from values instead of YAML.

Example:
    >>> run = policyloop.train(model="smollm2-135m-instruct", data=rows, reward=f, algorithm=policyloop.GRPO(group_size=8), steps=20)
    >>> run.evaluate().sentence()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from policyloop import algorithms
from policyloop.algorithms import Strategy
from policyloop.config import build
from policyloop.models import LoraSettings, ModelSettings
from policyloop.recipe import Recipe, check
from policyloop.rewards import Given, RewardsSettings
from policyloop.rollout import RolloutSettings
from policyloop.run import Run, start
from policyloop.tasks import DataSettings, Task
from policyloop.tasks.jsonl import JsonlTask
from policyloop.training import TrainingSettings

GRPO = partial(dataclasses.replace, algorithms.GRPO)
GFPO = partial(dataclasses.replace, algorithms.GFPO)
SFT = partial(dataclasses.replace, algorithms.SFT)

Rows = Sequence[Mapping[str, Any]]


def train(
    model: str,
    data: Rows | str | DataSettings,
    reward: Callable[..., Any] | RewardsSettings | None = None,
    algorithm: Strategy = algorithms.GRPO,
    *,
    run: str | Path = "runs/python",
    lora: LoraSettings | None = LoraSettings(),  # noqa: B008 - settings are frozen
    template: str | None = None,
    rollout: Mapping[str, Any] | None = None,
    resume: str = "never",
    force: bool = False,
    say: Callable[[str], None] = print,
    **training: Any,
) -> Run:
    """Train and return the run. `data`: rows (dicts), a task's name, a data file or DataSettings. `reward`: a function, settings, or None
    for the task's own verdict. Keyword arguments are fields of `training` (steps, lr, batch_size, …), `rollout` fields of that table.

    Errors: BadInput as from the command line. Works inside a running event loop (a notebook).
    """
    recipe = Recipe(
        model=ModelSettings(base_model_path=model, lora=lora, template=template),
        data=data if isinstance(data, DataSettings) else DataSettings(task=data if isinstance(data, str) else "jsonl"),
        rewards=_rewards(reward),
        rl_strategy=algorithm,
        rollout=build(RolloutSettings, rollout or {}, "rollout"),
        training=build(TrainingSettings, training, "training"),
    )
    check(recipe)
    task: Task | None = None if isinstance(data, (str, DataSettings)) else JsonlTask.from_rows(data, recipe.data)
    return start(recipe, Path(run), resume=resume, force=force, say=say, task=task)


def _rewards(reward: Callable[..., Any] | RewardsSettings | None) -> RewardsSettings:
    if reward is None:
        return RewardsSettings()
    return reward if isinstance(reward, RewardsSettings) else RewardsSettings(terms=(Given(function=reward),))
