"""Dynamic sampling: batch after batch until enough groups teach, judged by the raw outcome; the cursor tells a resumed run where it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from policyloop.algorithms.parts.filter import DropConstant
from policyloop.engine import Request
from policyloop.engine.scripted import Answer, Plain, ScriptedEngine
from policyloop.rollout.source import RolloutSource
from policyloop.types import Group, Progress, Prompt, SamplingParams, Score


class Renderer(Plain):
    """A prompt is its number."""

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]:
        return (int(prompt.text or 0),)


class Scorer:
    """Right where the answer is token 1; the shaped reward differs everywhere, which dynamic sampling must not see."""

    def score(self, groups: Sequence[Group]) -> tuple[list[Group], dict[str, float]]:
        made = []
        for g in groups:
            right = [float(c.token_ids[0] == 1) for c in g.completions]
            scores = tuple(Score(m - 0.1 * i, metric=m) for i, m in enumerate(right))
            made.append(replace(g, scores=scores))
        return made, {}

    def problems(self) -> list[str]:
        return []

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Nothing to remember."""


def source(useful: int, of: int, batches: int, per_step: int = 4) -> RolloutSource:
    """`of` prompts, the first `useful` of which have one right and one wrong answer."""

    def script(request: Request, sample: int) -> Answer:
        return Answer([1 if sample == 0 and request.prompt_token_ids[0] < useful else 5])

    prompts = [Prompt.make("t", str(i)) for i in range(of)]
    params = SamplingParams(max_new_tokens=1, n=2)
    part = DropConstant(batches=batches) if batches else None
    return RolloutSource(
        prompts, ScriptedEngine(script, Renderer()), Renderer(), Scorer(), params, per_step=per_step, seed=0, dynamic=part
    )


def numbers(groups: Sequence[Group]) -> list[int]:
    return [int(g.prompt.text or -1) for g in groups]


def test_it_samples_on_until_the_step_is_full() -> None:
    made = source(useful=8, of=16, batches=10)
    groups = made.next(Progress())
    assert len(groups) == 4 and all(n < 8 for n in numbers(groups))
    m = made.metrics
    assert m["dynamic/batches"] >= 2 and 0 < m["dynamic/kept_frac"] < 1 and m["dynamic/all_right"] == 0
    assert m["tokens/generated"] == 2 * 4 * m["dynamic/batches"]
    assert m["dynamic/all_wrong"] == 4 * m["dynamic/batches"] * (1 - m["dynamic/kept_frac"])


def test_it_gives_up_after_the_given_batches() -> None:
    few = source(useful=1, of=16, batches=2)
    assert len(few.next(Progress())) <= 1 or few.metrics["dynamic/kept_frac"] == 0
    none = source(useful=0, of=16, batches=3)
    assert len(none.next(Progress())) == 4 and none.metrics["dynamic/batches"] == 3  # the trainer counts a skipped step


def test_without_it_every_group_goes_on() -> None:
    plain = source(useful=8, of=16, batches=0)
    assert len(plain.next(Progress())) == 4 and "dynamic/batches" not in plain.metrics


def test_the_cursor_remembers_every_batch() -> None:
    one, two = source(8, 16, 10), source(8, 16, 10)
    one.next(Progress())
    two.load(one.state())
    assert numbers(two.next(Progress())) == numbers(one.next(Progress()))
