"""A trained reward model as a reward: alone and in company."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scoring import said, scorer, values

from policyloop.errors import BadInput
from policyloop.models import ModelSettings
from policyloop.models.reward import load_reward_model, open_reward_model
from policyloop.models.template import load_renderer
from policyloop.models.tiny import make_tiny
from policyloop.rewards import RewardModels, RewardsSettings
from policyloop.rewards.reward_model import together
from policyloop.types import Group, Prompt


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("models")
    base = make_tiny(root / "base")
    for seed in (1, 2):
        model = load_reward_model(ModelSettings(base_model_path=str(base), lora=None, template="plain"), "fp32", "cpu", 0)
        torch.manual_seed(seed)
        torch.nn.init.normal_(model.score.weight)
        model.extra = load_renderer(base, "plain").files()
        model.about = {"mean": 0.5, "std": 2.0}
        model.save(root / f"rm{seed}")
    return [str(root / "rm1"), str(root / "rm2")]


def groups() -> list[Group]:
    prompt = Prompt.make("tiny_arithmetic", "2+3=", "5")
    return [Group("a", prompt, (said("2+3=5#5", 8), said("6#6", 4), said("2+3", 3, "length")))]


def test_scores_of_one_model_in_units_of_its_own_spread(folders: list[str]) -> None:
    model, rows = open_reward_model(folders[0]), groups()
    texts = [c.text for c in rows[0].completions]
    raw = model.scores([rows[0].prompt] * 3, texts, [True, True, False])
    plain = RewardsSettings(terms=(RewardModels(path=folders[0], normalise=False),))
    assert values(scorer(plain, rows).score(rows)[0]) == pytest.approx(raw)
    normal = RewardsSettings(terms=(RewardModels(path=folders[0]),))
    assert values(scorer(normal, rows).score(rows)[0]) == pytest.approx([(s - 0.5) / 2.0 for s in raw])
    assert len(set(raw)) == 3


def test_several_models(folders: list[str]) -> None:
    rows = groups()
    each = [values(scorer(RewardsSettings(terms=(RewardModels(path=f),)), rows).score(rows)[0]) for f in folders]
    worst = RewardsSettings(terms=(RewardModels(path=tuple(folders), ensemble="worst"),))
    assert values(scorer(worst, rows).score(rows)[0]) == pytest.approx([min(a, b) for a, b in zip(*each, strict=True)])


def test_ensembles_by_hand() -> None:
    assert together([1.0, 0.0], "mean", 1.0) == 0.5
    assert together([1.0, 0.0], "worst", 1.0) == 0.0
    assert together([1.0, 0.0], "uncertainty", 2.0) == -0.5
    assert together([1.0], "uncertainty", 2.0) == 1.0


def test_a_path_that_is_none_is_an_error_before_the_run(folders: list[str]) -> None:
    with pytest.raises(BadInput, match="no reward model"):
        scorer(RewardsSettings(terms=(RewardModels(path=str(Path(folders[0]).parent / "base")),)), groups())
