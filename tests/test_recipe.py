"""Recipes: the seed's snippet, every shipped file, other spellings, sizes, impossible combinations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policyloop.algorithms import PolicyGradient
from policyloop.algorithms.parts.filter import TopK
from policyloop.errors import BadInput
from policyloop.recipe import ALIASES, FOREIGN, from_tree, load, plan, strategy, tree_of

ROOT = Path(__file__).parents[1]
MODEL = {"model": {"base_model_path": "tiny"}}


def recipe(**tables: Any) -> Any:
    return from_tree({**MODEL, **tables})


def test_the_snippet_that_users_already_write_loads_as_it_is() -> None:
    """S1-34 to S1-43."""
    r = load(ROOT / "tests" / "seed.yaml")
    assert r.model.base_model_path == "/mnt/data/base_model" and r.model.reference_model_freeze
    assert isinstance(r.rl_strategy, PolicyGradient) and r.rl_strategy.group_size == 8
    assert r.rl_strategy.filter == TopK(k=2, metric="target_accuracy")
    assert r.rl_strategy.advantage.baseline == "group"  # type: ignore[union-attr]
    efficiency = r.rewards.token_efficiency
    assert efficiency is not None and efficiency.length_ratio_threshold == 0.7 and efficiency.only_if_correct


def test_a_switched_off_filter_is_none() -> None:
    r = recipe(
        rl_strategy={"type": "GFPO", "filter_mechanism": {"enabled": False}, "token_efficiency_reward": {"enabled": False}}
    )
    assert r.rl_strategy.filter is None and r.rewards.token_efficiency is None


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_recipe_loads_plans_and_comes_back(path: Path) -> None:
    r = load(path)
    foreseen = plan(r, prompts=10_000)
    assert foreseen.steps >= 1 and foreseen.batch_size >= 1 and foreseen.lines()
    assert from_tree(json.loads(json.dumps(tree_of(r)))) == r


@pytest.mark.parametrize("name", ["GRPO", "grpo", "G.R.P.O", "grpo-paper", "GRPO_paper", "Gf Po"])
def test_strategy_names_without_case_and_separators(name: str) -> None:
    assert strategy(name) is not None


def test_unknown_strategy_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="one of sft, grpo"):
        recipe(rl_strategy={"type": "SARSA"})


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("rl_strategy", "beta"),
        ("rl_strategy", "loss_type"),
        ("training", "bf16"),
        ("training", "logging_steps"),
        ("model", "lora_rank"),
    ],
)
def test_keys_of_other_trainers_are_answered_with_ours(table: str, key: str) -> None:
    tree = {**MODEL, table: {**MODEL.get(table, {}), key: 1}}
    with pytest.raises(BadInput) as caught:
        from_tree(tree)
    assert FOREIGN[key] in str(caught.value)


def test_whole_configs_of_other_trainers_are_answered() -> None:
    with pytest.raises(BadInput, match="here it is model, rollout and training"):
        from_tree({**MODEL, "actor_rollout_ref": {}})


def test_aliases_and_their_contradictions() -> None:
    assert recipe(rl_strategy={"num_generations": 4}).rl_strategy.group_size == 4
    assert recipe(training={"learning_rate": 1e-5}).training.lr == 1e-5
    with pytest.raises(BadInput, match="one of the two"):
        recipe(rl_strategy={"sampling_count": 4, "group_size": 8})
    assert all(old.split(".")[0] == new.split(".")[0] for old, new in ALIASES.items())


# --- sizes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "updates", "expected"),
    [
        ({}, 1, (8, 64, 64, 1)),
        ({"prompts_per_step": 4}, 1, (4, 32, 32, 1)),
        ({"batch_size": 256, "grad_accum": 4}, 1, (32, 256, 64, 4)),
        ({"per_device_train_batch_size": 16, "grad_accum": 2}, 1, (4, 32, 16, 2)),
        ({"batch_size": 16}, 4, (8, 16, 16, 1)),
        ({"batch_size": 64, "per_device_train_batch_size": 16}, 1, (8, 64, 16, 4)),
    ],
)
def test_any_size_may_be_given_and_the_rest_follows(training: dict[str, int], updates: int, expected: tuple[int, ...]) -> None:
    """batch_size = prompts_per_step x group_size / updates_per_rollout = per_device x accumulation x ranks, group size 8."""
    p = plan(recipe(training=training, rl_strategy={"updates_per_rollout": updates}), prompts=1000)
    assert (p.prompts_per_step, p.batch_size, p.per_device_train_batch_size, p.grad_accum) == expected


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"batch_size": 64, "prompts_per_step": 4}, ("training.batch_size is 64", "prompts_per_step", "is 32")),
        (
            {"batch_size": 64, "per_device_train_batch_size": 8, "grad_accum": 4},
            ("training.batch_size is 64", "per_device_train_batch_size", "is 32"),
        ),
        ({"batch_size": 60}, ("60 sequences", "whole prompts of 8")),
        ({"batch_size": 64, "per_device_train_batch_size": 48}, ("per_device_train_batch_size 48",)),
    ],
)
def test_contradictions_name_both_sides(training: dict[str, int], said: tuple[str, ...]) -> None:
    with pytest.raises(BadInput) as caught:
        plan(recipe(training=training), prompts=1000)
    assert all(part in str(caught.value) for part in said)


def test_steps_or_epochs_whichever_ends_first() -> None:
    assert plan(recipe(training={"steps": 100, "epochs": 1}), prompts=80).steps == 10
    assert plan(recipe(training={"steps": 5, "epochs": 1}), prompts=80).steps == 5
    assert plan(recipe(training={"epochs": 2}), prompts=80).steps == 20
    with pytest.raises(BadInput, match="2 training prompts make 0 batches of 8"):
        plan(recipe(), prompts=2)


def test_learning_rate_follows_the_kind_of_fine_tuning() -> None:
    assert plan(recipe(), prompts=100).lr == 3e-5
    assert plan(from_tree({"model": {"base_model_path": "tiny", "lora": None}}), prompts=100).lr == 1e-6


def test_the_plan_says_which_passes_a_step_needs() -> None:
    assert plan(recipe(), prompts=100).passes == ("sampling", "reference (adapter off)", "update")
    assert plan(recipe(rl_strategy={"kl": None}), prompts=100).passes == ("sampling", "update")
    assert "old log-probs" in plan(recipe(rl_strategy={"updates_per_rollout": 2}), prompts=100).passes
    assert plan(recipe(rl_strategy={"type": "sft"}), prompts=100).passes == ("update",)


# --- what cannot work -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"training": {"max_grad_norm": 0}}, "training.max_grad_norm = 0"),
        ({"training": {"max_grad_norm": -1}}, "training.max_grad_norm = -1"),
        ({"training": {"max_grad_norm": float("nan")}}, "training.max_grad_norm = nan"),
        ({"training": {"max_grad_norm": "1.0"}}, "training.max_grad_norm = '1.0'"),
        ({"training": {"steps": 0}}, "training.steps = 0"),
        ({"rl_strategy": {"group_size": 1}}, "rl_strategy.group_size = 1"),
        ({"rl_strategy": {"type": "gfpo", "filter": {"top_k": {"k": 1}}}}, "filter.top_k.k = 1"),
        ({"rl_strategy": {"type": "gfpo", "filter": {"top_k": {"k": 9}}}}, "filter.top_k.k = 9"),
        ({"rl_strategy": {"kl": {"estimator": "k1"}}}, "k1 has no useful gradient"),
        ({"rl_strategy": {"value": {}}}, "asks for a critic"),
        ({"model": {"base_model_path": "tiny", "reference_model_freeze": False}}, "reference_sync_steps"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature = 0"),
        ({"rewards": []}, "rewards.terms is empty"),
        ({"rewards": {"token_efficiency": {"weight": 1.0}}}, "token_efficiency.weight = 1"),
        ({"rewards": {"token_efficiency": {"length_ratio_threshold": 0}}}, "length_ratio_threshold = 0"),
    ],
)
def test_impossible_combinations(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        from_tree({**MODEL, **tables})
    assert said in str(caught.value)


def test_clipping_is_switched_off_by_null() -> None:
    assert recipe(training={"max_grad_norm": None}).training.max_grad_norm is None
    assert recipe().training.max_grad_norm == 1.0


def test_degenerate_filter_is_warned_about() -> None:
    """S1-40: the retained baseline with a metric that follows the reward."""
    r = recipe(rl_strategy={"type": "gfpo_paper", "filter": {"top_k": {"k": 2, "metric": "target_accuracy"}}})
    assert any("most groups get no gradient" in w for w in plan(r, prompts=100).warnings)
    assert not plan(recipe(rl_strategy={"type": "gfpo"}), prompts=100).warnings
