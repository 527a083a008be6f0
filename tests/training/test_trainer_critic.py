"""PPO through the trainer: the critic learns beside the policy, alone at first, and a resumed run goes on bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from policyloop.models import CriticSettings, ModelSettings
from policyloop.models.critic import CriticModel, load_critic
from policyloop.models.pack import pack
from policyloop.recipe import load
from policyloop.run import start


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digits(completions: list[str]) -> list[float]:
    """A reward with a spread from the first step on: the share of digits."""
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


def ppo(folder: Path, steps: int, resume: str = "never", **changes: Any) -> list[dict[str, Any]]:
    tree = {
        "model": {"base_model_path": "tiny", "lora": None, "template": "plain", "critic": {"lr": 1e-3, "warmup_steps": 1}},
        "data": {"task": "tiny_arithmetic"},
        "rewards": {"terms": [{f"{Path(__file__)}:digits": {}}]},
        "rl_strategy": {"type": "ppo", "updates_per_rollout": 2, "kl": {"target_per_token": 0.01, "horizon": 100}},
        "training": {
            "steps": 4,
            "prompts_per_step": 8,
            "lr": 1e-3,
            "save_steps": 2,
            "threads": 1,
            "precision": "fp32",
            "signal_check": {"prompts": 4},
        },
        "rollout": {"max_new_tokens": 8},
        "evaluation": {"every": 0},
    }
    recipe = load(tree, [f"training.steps={steps}", *(f"{k}={v}" for k, v in changes.items())])
    start(recipe, folder, resume=resume, say=lambda line: None)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "sys/"))} for row in rows]


def saved(folder: Path, step: int) -> dict[str, bytes]:
    root = folder / "checkpoints" / f"{step:08d}"
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.suffix == ".safetensors"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ppo") / "run"
    return folder, ppo(folder, 4)


def test_the_policy_is_frozen_while_the_critic_warms_up(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    _, rows = whole
    assert rows[0]["update/frozen"] == 2 and rows[0]["update/ok"] == 0 and rows[0]["loss/value"] > 0
    assert all(row["update/ok"] == 2 and "update/frozen" not in row for row in rows[1:])
    assert rows[0]["value/mean"] == 0  # a head of zeros expects nothing
    assert all(row["value/mean"] != 0 and row["value/explained_variance"] < 1 for row in rows[1:])


def test_the_kl_coefficient_moves_and_is_logged(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    _, rows = whole
    assert "number/kl.coef" not in rows[0] and "number/kl.coef" in rows[3]
    low, high = 0.05 * (1 - 0.2 * 8 / 100) ** 3, 0.05 * (1 + 0.2 * 8 / 100) ** 3
    assert low <= rows[3]["number/kl.coef"] <= high


def test_a_resumed_run_is_the_undisturbed_one(whole: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Law (j): policy, critic, both optimizers and every metric."""
    folder, rows = whole
    again = tmp_path / "run"
    ppo(again, 2)
    resumed = ppo(again, 4, "auto")
    assert resumed == rows
    files = saved(folder, 4)
    assert {n.split("/")[0] for n in files} == {"policy", "value_net", "optimizer"} and saved(again, 4) == files


def test_value_net_is_a_folder_that_loads_alone(whole: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, _ = whole
    net = folder / "checkpoints" / "00000004" / "value_net"
    found = load_critic(ModelSettings(base_model_path=str(net), lora=None), CriticSettings(), "fp32", "cpu", seed=0)
    packed = pack([("g", [1, 5, 6], [7, 8])], torch.ones(1, 2, dtype=torch.bool))
    fresh = load_critic(ModelSettings(base_model_path="tiny", lora=None), CriticSettings(), "fp32", "cpu", seed=0)
    assert fresh.values(packed).tolist() == [[0.0, 0.0]] and found.values(packed).abs().min() > 0
    fresh.load({str(p.relative_to(net)): p.read_bytes() for p in net.rglob("*") if p.is_file()})
    assert torch.equal(fresh.values(packed), found.values(packed))


def test_the_critic_learns_what_is_constant() -> None:
    """Regression on a known return: the error falls, the frozen logits head does not move."""
    critic = load_critic(ModelSettings(base_model_path="tiny", lora=None), CriticSettings(lr=1e-2), "fp32", "cpu", seed=0)
    packed = pack([("g", [1, 5, 6], [7, 8])], torch.ones(1, 2, dtype=torch.bool))
    errors = [float((critic.values(packed) - 0.7).abs().max())]
    for _ in range(30):
        taken, norm = critic.learn([packed], lambda values, i: ((values - 0.7) ** 2).sum())
        assert taken and norm > 0
    assert float((critic.values(packed) - 0.7).abs().max()) < 0.2 * errors[0]
    assert isinstance(critic, CriticModel) and not critic.trunk.causal.get_output_embeddings().weight.requires_grad


def test_a_critic_s_step_that_is_not_finite_is_not_taken() -> None:
    critic = load_critic(ModelSettings(base_model_path="tiny"), CriticSettings(), "fp32", "cpu", seed=0)
    packed = pack([("g", [1, 5, 6], [7, 8])], torch.ones(1, 2, dtype=torch.bool))
    before = critic.files()
    taken, _ = critic.learn([packed], lambda values, i: values.sum() * torch.nan)
    assert not taken and critic.files() == before


def test_the_update_stops_once_the_policy_has_moved(tmp_path: Path) -> None:
    """target_kl: no second step where the first already moved the policy beyond 1.5 targets; the first is on-policy, KL 0."""
    changes = {"rl_strategy.target_kl": 1e-12, "rl_strategy.epochs_per_rollout": 3, "model.critic.warmup_steps": 0}
    rows = ppo(tmp_path / "run", 1, **changes)
    assert rows[0]["update/early_stop"] == 1 and rows[0]["update/ok"] == 2
