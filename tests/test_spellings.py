"""Other spellings of a recipe's keys: taken, or answered with ours; never silently dropped."""

from __future__ import annotations

from typing import Any

import pytest

from policyloop.errors import BadInput
from policyloop.recipe import ROOMS, from_tree, load
from policyloop.spellings import ALIASES, FOREIGN, translate

MODEL = {"model": {"base_model_path": "tiny"}}


def test_every_spelling_moves_its_value() -> None:
    for old, new in ALIASES.items():
        if "filter_mechanism" in old:  # goes on through its table
            continue
        (room, key), (target, name) = old.split(".", 1), new.split(".", 1)
        assert translate({room: {key: 7}}) == {target: {name: 7}}


def test_the_filter_and_the_length_term() -> None:
    tree = {"rl_strategy": {"filter_mechanism": {"enabled": True, "metric": "shortest", "top_k": 2}}}
    assert translate(tree) == {"rl_strategy": {"filter": {"top_k": {"metric": "shortest", "k": 2}}}}
    assert tree["rl_strategy"]["filter_mechanism"]["top_k"] == 2  # what was given is not changed
    tree = {"rewards": [{"correct": None}], "rl_strategy": {"token_efficiency_reward": {"length_ratio_threshold": 0.5}}}
    assert translate(tree) == {
        "rewards": {"terms": [{"correct": None}], "token_efficiency": {"length_ratio_threshold": 0.5}},
        "rl_strategy": {},
    }


@pytest.mark.parametrize("table", [{"enabled": False, "top_k": 2}, None])
def test_switched_off_is_null(table: Any) -> None:
    assert translate({"rl_strategy": {"filter_mechanism": table}}) == {"rl_strategy": {"filter": None}}


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"filter_mechanism": {"enabled": "no"}}, "filter_mechanism.enabled = 'no': allowed is true or false"),
        ({"filter_mechanism": {"enabled": 1}}, "filter_mechanism.enabled = 1: allowed is true or false"),
        ({"filter_mechanism": True}, "filter_mechanism = True"),
        (
            {"filter_mechanism": {"top_k": 2}, "filter": {"top_k": {"k": 3}}},
            "filter_mechanism.k = 2 and rl_strategy.filter.top_k.k = 3",
        ),
        ({"filter_mechanism": {"top_k": 2}, "filter": None}, "rl_strategy.filter: null"),
        ({"filter_mechanism": {"enabled": False}, "filter": {"top_k": {}}}, "rl_strategy.filter"),
        ({"sampling_count": 4, "group_size": 8}, "sampling_count = 4 and rl_strategy.group_size = 8"),
    ],
)
def test_contradictions_and_wrong_types_are_refused(strategy: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        from_tree({**MODEL, "rl_strategy": strategy})
    assert said in str(caught.value)


def test_any_spelling_overrides_any_other() -> None:
    tree = {**MODEL, "rl_strategy": {"sampling_count": 8, "surrogate": {"clip": {"high": 0.3}}}, "training": {"save-steps": 8}}
    assert load(tree, ["rl_strategy.group_size=4"]).rl_strategy.group_size == 4
    assert load(tree, ["rl_strategy.num_generations=16"]).rl_strategy.group_size == 16
    assert load(tree, ["training.save_steps=16"]).training.save_steps == 16
    assert load(tree, ["rl_strategy.surrogate.cispo.weight_max=2.0"]).rl_strategy.surrogate.weight_max == 2.0
    assert load(tree, ["rl_strategy.surrogate.clip.low=0.1"]).rl_strategy.surrogate.high == 0.3
    gfpo = {**MODEL, "rl_strategy": {"type": "gfpo", "filter_mechanism": {"enabled": False}}}
    assert load(gfpo).rl_strategy.filter is None
    assert load(gfpo, ["rl_strategy.filter_mechanism.top_k=3"]).rl_strategy.filter.k == 3


@pytest.mark.parametrize(
    ("table", "key"),
    [("rl_strategy", "beta"), ("rl_strategy", "loss_type"), ("training", "bf16"), ("training", "logging_steps"), ("model", "lora_rank"), ("rollout", "response_length")],
)  # fmt: skip
def test_keys_of_other_trainers_are_answered_with_ours(table: str, key: str) -> None:
    with pytest.raises(BadInput) as caught:
        from_tree({**MODEL, table: {**MODEL.get(table, {}), key: 1}})
    assert f"here it is {FOREIGN[key]}" in str(caught.value)


def test_whole_configs_of_other_trainers_and_our_own_keys_elsewhere() -> None:
    with pytest.raises(BadInput, match="here it is model, rollout and training"):
        from_tree({**MODEL, "actor_rollout_ref": {}})
    with pytest.raises(BadInput, match=r"unknown key training\.temperature; here it is rollout\.temperature"):
        from_tree({**MODEL, "training": {"temperature": 1.0}})
    with pytest.raises(BadInput, match=r"unknown key lr; here it is training\.lr"):
        from_tree({**MODEL, "lr": 1e-5})


def test_what_foreign_keys_are_answered_with_is_there() -> None:
    """Every `room.key` that an answer names is a field of that room."""
    import dataclasses
    import re

    from policyloop.algorithms import PolicyGradient

    rooms = {**ROOMS, "rl_strategy": PolicyGradient}
    for key, answer in FOREIGN.items():
        for room, name in re.findall(rf"\b({'|'.join(rooms)})\.(\w+)", answer):
            assert name in {f.name for f in dataclasses.fields(rooms[room])} | {"type"}, f"{key}: {answer}"
