"""Strict configuration: YAML 1.2 core, no guessing, one sentence for every mistake, trees that build back to what they came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policyloop.algorithms import ALGORITHMS, GRPO, PolicyGradient
from policyloop.algorithms.parts.schedule import Linear
from policyloop.algorithms.parts.surrogate import Cispo, Clip
from policyloop.config import build, load_yaml, override, to_tree
from policyloop.errors import BadInput
from policyloop.rewards import Function, RewardsSettings
from policyloop.training import TrainingSettings


def test_yaml_1_2_numbers_and_booleans() -> None:
    tree = load_yaml("a: 1e-6\nb: yes\nc: on\nd: off\ne: true\nf: 0o17\ng: 12:30\nh: 1_000\ni: .5\nj: ~\nk: 2026-12-01")
    assert tree == {
        "a": 1e-6, "b": "yes", "c": "on", "d": "off", "e": True, "f": 15, "g": "12:30", "h": "1_000", "i": 0.5, "j": None, "k": "2026-12-01",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", r"key a stands twice \(line 3\)"),
        ("a: &x 1\nb: *x", r"an alias"),
        ("a:\n\t- 1", r"is not YAML in line 2"),
        ("- 1\n- 2", "holds a list"),
        ("1: 2", "is not a name"),
        ("a: [1", "is not YAML"),
    ],
)
def test_what_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        load_yaml(text)


@pytest.mark.parametrize("assignment", ["a=" + "[" * 5000, "a=" + "9" * 5000, "a=[1", "=1", "a..b=1", "a"])
def test_assignments_that_are_refused(assignment: str) -> None:
    with pytest.raises(BadInput) as caught:
        override({}, assignment)
    assert len(str(caught.value)) < 5200


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_yaml(path) == {"a": 1}
    with pytest.raises(BadInput, match="cannot be read"):
        load_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"lr": "1.0"}, "training.lr = '1.0': allowed is a number"),
        ({"lr": True}, "training.lr = True: allowed is a number"),
        ({"steps": 1.5}, "training.steps = 1.5"),
        ({"steps": True}, "training.steps = True"),
        ({"lr": float("nan")}, "training.lr = nan: allowed is a finite number"),
        ({"precison": "bf16"}, "unknown key training.precison; did you mean precision"),
        ({"precision": "int8"}, "one of auto, fp32, bf16, fp16"),
        ({"betas": [0.9]}, "training.betas has 1 entries: allowed is 2"),
        ({"health": 3}, "training.health = 3: allowed is a table"),
        ({"health": {"max_bad": 3}}, "unknown key training.health.max_bad"),
        ({"async_save": "yes"}, "true or false"),
    ],
)
def test_wrong_values_get_one_sentence(tree: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        build(TrainingSettings, tree, "training")
    assert said in str(caught.value)


def test_a_slot_keeps_what_is_not_said_only_for_the_same_part() -> None:
    """GRPO's clip has dual 3: the same row keeps it, another row starts from its own defaults, null is none."""
    assert build(PolicyGradient, {"surrogate": {"clip": {"high": 0.28}}}, "s", GRPO).surrogate == Clip(
        low=0.2, high=0.28, dual=3.0
    )
    assert build(PolicyGradient, {"surrogate": {"cispo": {}}}, "s", GRPO).surrogate == Cispo()
    assert build(PolicyGradient, {"surrogate": "cispo"}, "s", GRPO).surrogate == Cispo()
    assert build(PolicyGradient, {"kl": None}, "s", GRPO).kl is None
    kl = build(PolicyGradient, {"kl": {"coef": 0.5}}, "s", GRPO).kl
    assert kl is not None and kl.coef == 0.5 and kl.estimator == "k3"


def test_a_users_own_part_and_function() -> None:
    own = "policyloop.algorithms.parts.surrogate:Cispo"
    assert build(PolicyGradient, {"surrogate": {own: {"weight_max": 2.0}}}, "s", GRPO).surrogate == Cispo(weight_max=2.0)
    rewards = build(RewardsSettings, {"terms": [{"my.py:score": {"weight": 0.5}}]}, "rewards")
    assert rewards.terms == (Function(path="my.py:score", weight=0.5),)
    with pytest.raises(BadInput, match="cannot be imported"):
        build(PolicyGradient, {"surrogate": {"no.such:Thing": {}}}, "s", GRPO)
    with pytest.raises(BadInput, match="'klip' is not in the table; did you mean clip"):
        build(PolicyGradient, {"surrogate": {"klip": {}}}, "s", GRPO)


def test_a_number_may_be_a_schedule() -> None:
    tree = {"surrogate": {"clip": {"low": {"linear": {"start": 0.3, "end": 0.1}}}}}
    got = build(PolicyGradient, tree, "s", GRPO)
    assert got.surrogate == Clip(low=Linear(start=0.3, end=0.1), high=0.2, dual=3.0)
    assert build(PolicyGradient, to_tree(got), "s") == got


@pytest.mark.parametrize("name", ALGORITHMS)
def test_trees_build_back(name: str) -> None:
    value = ALGORITHMS[name]
    assert build(type(value), to_tree(value), "s") == value


def test_override() -> None:
    tree = {"training": {"lr": 1.0, "steps": 2}}
    assert override(tree, "training.lr=1e-6") == {"training": {"lr": 1e-6, "steps": 2}}
    assert override(tree, "rl_strategy.kl=null")["rl_strategy"] == {"kl": None}
    assert override(tree, "training.save-steps=5")["training"]["save_steps"] == 5
    assert tree == {"training": {"lr": 1.0, "steps": 2}}
    with pytest.raises(BadInput, match=r"key\.key=value"):
        override(tree, "training.lr")
