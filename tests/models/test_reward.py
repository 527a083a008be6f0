"""The reward model: the score is read at the last token, by hand and by the packed forward; its folder opens again as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from policyloop.errors import BadInput
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.pack import pack
from policyloop.models.reward import ABOUT, HEAD, RewardModel, load_reward_model, open_reward_model
from policyloop.models.template import load_renderer
from policyloop.models.tiny import make_tiny
from policyloop.types import Prompt

ROWS = [("a", [1, 5, 6], [7, 8, 2]), ("a", [1, 5, 6], [9]), ("b", [1, 4], [3, 2])]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("models") / "base")


def made(base: Path, lora: bool) -> RewardModel:
    settings = ModelSettings(base_model_path=str(base), lora=LoraSettings(r=4) if lora else None, template="plain")
    model = load_reward_model(settings, "fp32", "cpu", 0)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.score.weight)
    model.extra = load_renderer(base, "plain").files()
    return model


@pytest.mark.parametrize("packs", [True, False], ids=["shared prompts", "own rows"])
def test_score_is_the_head_on_the_last_token_s_state(base: Path, packs: bool) -> None:
    model = made(base, lora=False)
    if not packs:
        model.packs = False
        model.causal.set_attn_implementation("sdpa")
    out = model(pack(ROWS, torch.ones(3, 3, dtype=torch.bool)))
    for n, (_, prompt, completion) in enumerate(ROWS):
        model.causal.set_attn_implementation("sdpa")
        hidden = model.causal.model(input_ids=torch.tensor([prompt + completion])).last_hidden_state[0, -1]
        expected = torch.zeros(3)
        expected[len(completion) - 1] = model.score(hidden)[0]
        torch.testing.assert_close(out.values_NT[n], expected, atol=1e-5, rtol=1e-5)


def test_a_fresh_head_finds_every_answer_worth_the_same(base: Path) -> None:
    model = load_reward_model(ModelSettings(base_model_path=str(base)), "fp32", "cpu", 0)
    assert not model(pack(ROWS, torch.ones(3, 3, dtype=torch.bool))).values_NT.any()


def test_gradient_reaches_head_and_trunk_and_only_what_trains(base: Path) -> None:
    model = made(base, lora=False)
    model(pack(ROWS, torch.ones(3, 3, dtype=torch.bool))).values_NT.sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for name, p in model.trainable() if "score" in name or "q_proj" in name
    )
    assert "lm_head.weight" not in dict(model.trainable())


@pytest.mark.parametrize("lora", [True, False], ids=["adapter", "full"])
def test_folder_opens_again_with_the_same_scores(base: Path, tmp_path: Path, lora: bool) -> None:
    model = made(base, lora)
    model.about = {"mean": 0.5, "std": 2.0}
    for _, p in model.trainable():
        p.data += 0.01
    model.save(tmp_path / "rm")
    opened = open_reward_model(tmp_path / "rm")
    prompts, answers = [Prompt.make("t", "2+3="), Prompt.make("t", "4-1=")], ["2+3=5#5", "3#3"]
    model.renderer = load_renderer(base, "plain")
    assert opened.scores(prompts, answers) == model.scores(prompts, answers)
    assert opened.about["std"] == 2.0 and not any(p.requires_grad for p in opened.parameters())
    cut = opened.scores(prompts, answers, whole=[True, False])
    assert cut[0] == opened.scores(prompts, answers)[0] and cut[1] != opened.scores(prompts, answers)[1]
    (tmp_path / "run").mkdir()
    (tmp_path / "rm").rename(tmp_path / "run" / "reward_model")
    assert open_reward_model(tmp_path / "run").about == opened.about
    assert {HEAD, ABOUT} <= {f.name for f in (tmp_path / "run" / "reward_model").iterdir()}


def test_a_policy_s_folder_is_no_reward_model(base: Path) -> None:
    with pytest.raises(BadInput, match="is no reward model"):
        open_reward_model(base)
