"""Allocation: sizes in closed form, the posterior's chances by definition, weighted draws that a resume repeats, groups that grow until they teach."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policyloop.recipe import load
from policyloop.rollout.allocation import (
    AdaptiveDifficulty,
    AllocationSettings,
    Allocator,
    Growing,
    Informative,
    chance_of_both,
)
from policyloop.rollout.cursor import Draw
from policyloop.run import start
from policyloop.training.folder import RunFolder
from policyloop.types import Completion, Group, Prompt, Score


def prompts(n: int) -> list[Prompt]:
    return [Prompt.make("t", f"q{i}") for i in range(n)]


def completion(text: str) -> Completion:
    return Completion((1,), (2,), (0.0,), "stop", "r#0", text)


def group(draw: Draw, metrics: list[float]) -> Group:
    return Group(draw.uid, draw.prompt, tuple(completion("") for _ in metrics), tuple(Score(m, {}, m) for m in metrics))


def difficulty(n: int = 40, **settings: Any) -> Allocator:
    return Allocator(AllocationSettings(prompts=AdaptiveDifficulty(**settings)), prompts(n), seed=1, per_step=4, group_size=4)


def test_group_sizes_of_the_guide() -> None:
    """32, +10 % a round, without compounding the rounding (shared vector `group_size_schedule`); at most 128, also far out."""
    assert [Growing().size(r) for r in range(12)] == [32, 35, 38, 42, 46, 51, 56, 62, 68, 75, 82, 91]
    assert Growing().size(15) == Growing().size(10**6) == 128
    assert Growing(start=8).size(0) == 16


def test_sequences_of_a_step_stay_constant_while_groups_grow() -> None:
    a = Allocator(AllocationSettings(samples=Growing(every="step")), prompts(64), seed=0, per_step=16, group_size=8)
    taken = [a.take(step) for step in (0, 4, 40)]
    assert [(len(draws), size) for draws, size in taken] == [(4, 32), (2, 46), (1, 128)]


@pytest.mark.parametrize(
    ("right", "wrong", "more", "chance"),
    [
        (1, 1, 4, 1.0),
        (0, 0, 2, 1 - 2 / 3),  # E[p²] = E[(1-p)²] = 1/3 under Beta(1, 1)
        (3, 0, 2, 1 - 4 / 6),  # Beta(4, 1): E[p²] = 4·5 / (5·6)
        (0, 3, 2, 1 - 4 / 6),
    ],
)
def test_chance_that_a_wave_makes_a_group_informative(right: int, wrong: int, more: int, chance: float) -> None:
    assert chance_of_both(1, 1, right, wrong, more) == pytest.approx(chance)


def test_prompts_that_are_sometimes_right_come_back_most() -> None:
    """After every prompt was seen once: 10 of 40 half right, the rest all right or all wrong."""
    a, seen = difficulty(uniform=0.0, max_repeats=100), Counter[str]()
    middle = {p.id for p in prompts(10)}
    for step in range(110):
        draws, size = a.take(step)
        if step >= 10:
            seen.update("middle" if d.prompt.id in middle else "rest" for d in draws)
        a.learn([group(d, [1.0, 0.0, 1.0, 0.0] if d.prompt.id in middle else [1.0] * size) for d in draws])
    assert seen["middle"] > 1.2 * seen["rest"] / 3  # a fair share of the middle would be a third of the rest
    assert a.metrics()["allocation/seen"] == 40 and a.metrics()["allocation/medium"] == 0.25


def test_every_prompt_is_seen_before_long_and_uids_never_repeat() -> None:
    a, uids = difficulty(), []
    for step in range(60):
        draws, _ = a.take(step)
        assert len({d.prompt.id for d in draws}) == 4
        uids += [d.uid for d in draws]
        a.learn([group(d, [1.0, 0.0]) for d in draws])
    assert len(set(uids)) == len(uids) and a.metrics()["allocation/seen"] == 40


@pytest.mark.parametrize("stop", [1, 9, 10, 11, 25])
def test_a_resumed_allocation_goes_on_as_if_nothing_had_been(stop: int) -> None:
    def walk(a: Allocator, steps: range) -> list[str]:
        found = []
        for step in steps:
            draws, _ = a.take(step)
            a.learn([group(d, [float((step + i) % 2), 1.0]) for i, d in enumerate(draws)])
            found += [d.uid for d in draws]
        return found

    whole, first, second = difficulty(), difficulty(), difficulty()
    expected = walk(whole, range(40))
    begun = walk(first, range(stop))
    second.load(json.loads(json.dumps(first.state())))
    assert begun + walk(second, range(stop, 40)) == expected


def grown(answers: dict[str, str], settings: Informative, group_size: int = 8) -> tuple[dict[str, int], int]:
    """Sizes of the groups when prompt q's k-th answer is right where `answers[q]` has an r at k; and what was saved."""
    asked = [Draw(q, Prompt.make("t", q), 0) for q in answers]
    a = Allocator(AllocationSettings(samples=settings), prompts(9), 0, len(asked), group_size, lambda p, c: c.text == "r")

    def more(wanted: Any) -> list[tuple[Completion, ...]]:
        return [tuple(completion(answers[d.uid][k]) for k in range(have, have + n)) for d, have, n in wanted]

    found = a.grow(asked, more([(d, 0, settings.first) for d in asked]), more)
    return {d.uid: len(g) for d, g in zip(asked, found, strict=True)}, a.saved


def test_a_group_stops_once_it_is_informative_and_hopeless_ones_are_left() -> None:
    answers = {"mixed": "rw" + "w" * 30, "late": "rrrrw" + "r" * 27, "easy": "r" * 32}
    sizes, saved = grown(answers, Informative(first=2, wave=2, cap=16, least=0.25))
    assert sizes["mixed"] == 2 and sizes["late"] == 6
    assert (
        sizes["easy"] == 6
    )  # two more of all right: after 4, Beta(5, 1), 1 - 5/7 = 0.29; after 6, Beta(7, 1), 1 - 7/9 = 0.22: not worth it
    assert saved == 24 - 14


def test_growth_keeps_to_budget_and_cap() -> None:
    answers = {"a": "r" * 64, "b": "r" * 64}
    assert grown(answers, Informative(first=2, wave=4, cap=64, least=0.0)) == ({"a": 10, "b": 6}, 0)  # of equals the first
    assert grown(answers, Informative(first=2, wave=4, cap=4, least=0.0)) == ({"a": 4, "b": 4}, 8)


def digits(completions: list[str]) -> list[float]:
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def test_a_run_with_allocation_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Both parts at once, on the tiny model: interrupted after two steps and resumed, against one that was not."""
    tree = {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain"},
        "data": {"task": "tiny_arithmetic"},
        "rewards": {"terms": [{f"{Path(__file__)}:digits": {}}]},
        "rl_strategy": {"type": "grpo", "group_size": 4, "kl": None},
        "training": {"steps": 4, "prompts_per_step": 3, "lr": 1e-3, "threads": 1, "precision": "fp32", "signal_check": None},
        "rollout": {
            "max_new_tokens": 6,
            "allocation": {
                "prompts": {"adaptive_difficulty": {}},
                "samples": {"informative": {"first": 2, "wave": 2, "least": 0.0}},
            },
        },
        "evaluation": {"every": 0},
    }

    def run(folder: Path, steps: int) -> list[dict[str, Any]]:
        start(load(tree, [f"training.steps={steps}"]), folder, resume="auto", say=lambda line: None)
        rows = RunFolder(folder).rows("metrics.jsonl")
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in rows]

    whole = run(tmp_path / "whole", 4)
    run(tmp_path / "cut", 2)
    assert run(tmp_path / "cut", 4) == whole
    assert whole[-1]["allocation/seen"] == 9  # 3 new prompts, then 2 of 3 a step
    assert whole[0]["groups/size_mean"] == 4.0
