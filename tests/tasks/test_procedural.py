"""reasoning-gym behind our protocol."""

import pytest

from policyloop.errors import BadInput, NotFound
from policyloop.tasks import DataSettings, load_task
from policyloop.types import Completion

CHAIN = {
    "name": "chain_sum",
    "config": {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2},
    "size": 40,
    "held_out_size": 30,
}


def make(**options):
    return load_task(DataSettings(task="procedural", options=options), 0)


def done(text: str, finish: str = "stop") -> Completion:
    return Completion((1,), (2,), (-0.1,), finish, "run#0", text)


def test_small_generators_never_share_a_question():
    task = make(**CHAIN)
    train = {p.meta["question"] for p in task.train()}
    held = [p.meta["question"] for seed in (0, 1) for p in task.held_out(seed)]
    assert len(task.train()) == 40
    assert not train & set(held)
    assert len({p.id for p in task.held_out(0)}) == len(task.held_out(0)) == 30


def test_targets_are_right_and_judged_by_the_verifier():
    prompts = make(**CHAIN).held_out(3)
    task = make(**CHAIN)
    for p in prompts:
        expression = p.meta["metadata"]["expression"]
        assert p.target == str(eval(expression))
        assert task.grade(p, done(f"Let me see.\nThe answer is {p.target}.")) is True
        assert task.grade(p, done(f"<answer>{int(p.target) + 1}</answer>")) is False
        assert task.grade(p, done(f"**{p.target}**")) is True
        assert task.grade(p, done("")) is False


def test_answers_of_several_lines():
    task = make(name="game_of_life", size=1, held_out_size=1, config={"grid_size_x": 3, "grid_size_y": 3, "filled_cells": 3})
    prompt = task.train()[0]
    rows = prompt.target.replace("],", "],\n")
    assert task.grade(prompt, done(f"Here it is:\n<answer>{rows}</answer>")) is True
    assert task.grade(prompt, done(prompt.target.replace("0", "1"))) is False


def test_partial_scores_are_outcomes_and_not_right():
    task = make(name="spell_backward", size=1, held_out_size=1)
    prompt = task.train()[0]
    assert task.outcome(prompt, done(prompt.target)) == 1.0
    assert 0 < task.outcome(prompt, done(prompt.target[:-1] + "#")) < 1
    assert task.grade(prompt, done(prompt.target[:-1] + "#")) is False


def test_a_space_that_is_small_gives_what_it_has():
    task = make(name="products", config={"min_digits": 1, "max_digits": 1}, size=50, held_out_size=1000)
    held = task.held_out(0)
    assert 5 < len(held) < 50  # 90 or 100 products of two digits, a fifth of them held out
    assert len({p.id for p in held}) == len(held)


def test_wrong_names_and_settings():
    with pytest.raises(NotFound, match=r"reasoning-gym has no 'chain_sums'.*chain_sum"):
        make(name="chain_sums")
    with pytest.raises(BadInput, match=r"chain_sum has no setting digits: allowed is min_terms"):
        make(name="chain_sum", config={"digits": 1})
    with pytest.raises(BadInput, match="chain_sum refuses its config"):
        make(name="chain_sum", config={"min_terms": 5, "max_terms": 2})


def test_the_answer_format_can_be_taken_away():
    settings = DataSettings(task="procedural", options=CHAIN, answer_format="", correct_needs_stop=True)
    task = load_task(settings, 0)
    prompt = task.train()[0]
    assert prompt.messages[0].content == prompt.meta["question"]
    assert task.grade(prompt, done(prompt.target, "length")) is False
