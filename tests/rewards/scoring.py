"""Prompts, completions and scorers in one line each, for the tests of this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from policyloop.rewards import Given, RewardsSettings
from policyloop.rewards.scorer import Scorer
from policyloop.types import Completion, Group, Prompt


def said(text: str, length: int | None = None, finish: Any = "stop") -> Completion:
    ids = tuple(range(len(text) if length is None else length))
    return Completion((1,), ids, (0.0,) * len(ids), finish, "test#0", text)


def group(texts: Sequence[str | Completion], target: str | None = "5", **meta: Any) -> Group:
    completions = tuple(t if isinstance(t, Completion) else said(t) for t in texts)
    prompt = Prompt.make("test", f"What is 2+3? {meta}", target, meta)
    return Group(prompt.id, prompt, completions)


def equals(prompt: Prompt, completion: Completion) -> bool | None:
    """A verifier: the text is the gold."""
    return None if prompt.target is None else completion.text == prompt.target


def scorer(settings: RewardsSettings | Callable[..., Any], groups: Sequence[Group], limit: int = 10, **given: Any) -> Scorer:
    if not isinstance(settings, RewardsSettings):
        settings = RewardsSettings(terms=(Given(function=settings, **given),))
    return Scorer.from_settings(settings, grade=equals, prompts=[g.prompt for g in groups], max_new_tokens=limit)


def values(groups: Sequence[Group]) -> list[float | None]:
    return [s.value for g in groups for s in g.scores]


def parts(groups: Sequence[Group], name: str) -> list[float]:
    return [s.components[name] for g in groups for s in g.scores]
