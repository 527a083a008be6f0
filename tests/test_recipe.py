"""Recipes: the seed's snippet, every shipped file, other spellings, sizes, impossible combinations."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from policyloop.algorithms import PolicyGradient
from policyloop.algorithms.parts.filter import TopK
from policyloop.errors import BadInput
from policyloop.monitor.guards import GUARDS
from policyloop.recipe import ONLY, from_tree, load, memory, plan, strategy, tree_of, value_at

ROOT = Path(__file__).parents[1]
MODEL = {"model": {"base_model_path": "tiny"}}
ROWS = {
    "rl_strategy.surrogate": "clip",
    "rl_strategy.advantage": "group",
    "rl_strategy.weight": "token_mean",
    "rl_strategy.ratio": "token",
}


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
    with pytest.raises(BadInput, match=r"one of sft, reward_model, dpo, .*grpo"):
        recipe(rl_strategy={"type": "SARSA"})


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
        ({"rl_strategy": {"value": {}}}, "gae with a value loss"),
        ({"rl_strategy": {"advantage": "gae"}}, "gae with a value loss"),
        ({"rl_strategy": {"kl": {"target_per_token": 0.1, "target_per_sequence": 6}}}, "one unit, please"),
        ({"rl_strategy": {"type": "gfpo_adaptive", "group_size": 4}}, "difficulty keeps 8 of 4"),
        ({"model": {"base_model_path": "tiny", "reference_model_freeze": False}}, "reference_sync_steps"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature = 0"),
        ({"rewards": []}, "rewards.terms is empty"),
        ({"rl_strategy": "gfpo"}, "rl_strategy = 'gfpo'"),
        ({"rl_strategy": {"type": "gfpo", "filter": {"top_k": {"metric": "shortests"}}}}, "filter.top_k.metric = shortests"),
        ({"rl_strategy": {"surrogate": {":x": {}}}}, "cannot be imported"),
        ({"rl_strategy": {"surrogate": []}}, "rl_strategy.surrogate = []"),
        ({"rl_strategy": {"surrogate": None}}, "rl_strategy.surrogate = None: allowed is one of clip"),
        ({"rewards": {"terms": None}}, "rewards.terms = None"),
        ({"rl_strategy": {"surrogate": ["clip"]}}, "rl_strategy.surrogate = ['clip']"),
        ({"rewards": [{"a.py:f": [1]}]}, "a.py:f = [1]"),
        ({"rollout": {"engine": "vlm"}}, "one of builtin, scripted"),
        ({"rollout": {"top_p": 0}}, "rollout.top_p = 0.0: allowed is above 0 and at most 1"),
        ({"rollout": {"max_lag": 1}}, "rollout.max_lag = 1"),
        ({"training": {"resources": {"gpus": 8}}}, "training.resources.gpus = 8"),
        ({"training": {"resources": {"gpus": 0}, "device": "cuda"}}, "gpus = 0 and training.device = cuda"),
        ({"training": {"device": "gpu"}}, "training.device = gpu"),
        ({"training": {"betas": [1.0, 0.9]}}, "training.betas = 1.0: allowed is at least 0 and below 1"),
        ({"training": {"lr": 10**400}}, "a finite number"),
        ({"training": {"early_stop": 2}}, "evaluation.every: 1 or more"),
        ({"training": {"dist": {"master_port": 70000}}}, "at most 65535"),
        ({"training": {"save-steps": 1, "save_steps": 2}}, "save_steps stands twice"),
        ({"data": {"columns": {"prompt": 3}}}, "data.columns.prompt = 3"),
        ({"model": {"base_model_path": "tiny", "lora": {"target_modules": []}}}, "target_modules is empty"),
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


def test_warnings_of_what_is_legal_and_rarely_meant() -> None:
    said = plan(recipe(rl_strategy={"entropy": {"coef": 0.5}}), prompts=100).warnings
    assert any("entropy.coef 0.5" in w for w in said)
    frozen = {"model": {"base_model_path": "tiny", "reference_sync_steps": 5}}
    assert any("does nothing" in w for w in plan(from_tree(frozen), prompts=100).warnings)
    assert any("never reaches training.lr" in w for w in plan(recipe(training={"warmup_steps": 99}), prompts=100).warnings)
    assert not plan(recipe(), prompts=100).warnings


def test_tokens_of_a_step() -> None:
    """8 prompts x 8 answers x 100 tokens."""
    assert plan(recipe(rollout={"max_new_tokens": 100}), prompts=100).tokens_per_step == 6400
    assert plan(recipe(rl_strategy={"type": "sft"}), prompts=100).tokens_per_step is None


def test_memory_of_a_model_that_is_here_and_of_one_that_is_not() -> None:
    here, away = recipe(), from_tree({"model": {"base_model_path": "no-such-owner/no-such-model"}})
    assert "GB are free" in memory(here, plan(here, prompts=100))
    assert "is not on this machine yet" in memory(away, plan(away, prompts=100))


def test_a_changed_algorithm_keeps_its_name() -> None:
    assert tree_of(recipe(rl_strategy={"type": "gfpo", "group_size": 16}))["rl_strategy"]["type"] == "gfpo"
    assert tree_of(recipe(rl_strategy={"type": "grpo", "kl": None}))["rl_strategy"]["type"] == "grpo"


# --- every field does something ---------------------------------------------------------------------------------------------

SRC = ROOT / "src" / "policyloop"
READ_BY_NAME = {f"training.health.{name}" for name in GUARDS}  # one loop reads them through the table of guards


def leaves(value: Any, where: str = "") -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(value):
        return [(where, value)]
    return [
        x for f in dataclasses.fields(value) for x in leaves(getattr(value, f.name), f"{where}.{f.name}" if where else f.name)
    ]


@pytest.mark.parametrize("path", [path for path, _ in leaves(recipe()) if not path.startswith("rl_strategy.")])
def test_every_field_is_read_somewhere(path: str) -> None:
    """Not only by the check: what nothing reads does nothing. Values that this version refuses are in recipe.ONLY."""
    name = path.rsplit(".", 1)[-1]
    code = "\n".join(p.read_text(encoding="utf-8") for p in SRC.rglob("*.py") if "check" not in p.name)
    uses = re.findall(rf"\.{name}\b", code)
    assert uses or path in ONLY or path in READ_BY_NAME or path == "training.dist.master_port", path


@pytest.mark.parametrize(("path", "old"), [x for x in leaves(recipe()) if isinstance(x[1], bool | int | float)])
def test_every_changed_number_changes_the_resolved_tree(path: str, old: float) -> None:
    if path in ONLY:
        pytest.skip("one value only in this version")
    new = (not old) if isinstance(old, bool) else old + 1 if isinstance(old, int) else old / 2 if old else 0.5
    needed = {"model.reference_model_freeze": "model.reference_sync_steps=1", "evaluation.samples": "evaluation.temperature=0.5"}
    extra = [needed[path]] if path in needed else []
    key = re.sub(r"^(rl_strategy\.(?:surrogate|advantage|weight|ratio))\.", lambda m: f"{m[1]}.{ROWS[m[1]]}.", path)
    changed = load(MODEL, [f"{key}={json.dumps(new)}", *extra])
    assert value_at(changed, path) == new != value_at(recipe(), path)
    assert tree_of(changed) != tree_of(recipe())
