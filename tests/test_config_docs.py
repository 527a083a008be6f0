"""docs/config.md: its field tables are the settings classes', its links lead somewhere, and what its text says of the rules holds."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from policyloop.algorithms import PolicyGradient
from policyloop.algorithms.parts.filter import TopK
from policyloop.algorithms.parts.schedule import Decay, Linear
from policyloop.algorithms.parts.surrogate import Cispo, Clip
from policyloop.config import load_yaml, override
from policyloop.errors import BadInput
from policyloop.recipe import Recipe, from_tree
from policyloop.rewards import Correct, Format, Function
from policyloop.tasks import TASKS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("config_docs", ROOT / "scripts" / "config_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    assert script.page(TEXT) == TEXT, "python scripts/config_docs.py"


def test_check_tells_a_stale_page_and_writing_mends_it(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = tmp_path / "config.md"
    stale.write_text(
        TEXT.replace("| `group_size` | whole number | `8` |", "| `group_size` | whole number | `9` |"), encoding="utf-8"
    )
    monkeypatch.setattr(script, "PAGE", stale)
    assert script.main(["--check"]) == 1
    assert script.main([]) == 0 and stale.read_text(encoding="utf-8") == TEXT
    assert script.main(["--check"]) == 0


def test_rows_by_hand() -> None:
    for row in (
        "| `base_model_path` | text | needed |",
        "| `lora` | [table](#modellora) or null | its defaults |",
        "| `target_modules` | list of text or `all-linear` | `[q_proj, v_proj]` |",
        "| `betas` | list of 2: number, number | `[0.9, 0.95]` |",
        "| `dual` | number or [linear](#linear) or [decay](#decay) or null | `null` |",
        "| `columns` | table of text or null | `{}` |",
        "| `num_generations` | rl_strategy.group_size |",
        "| `training.max_steps` | `training.steps` |",
    ):
        assert row in TEXT.splitlines(), row


@pytest.mark.parametrize(
    "heading",
    [
        *(
            "model",
            "model.lora",
            "data",
            "rewards",
            "rewards.terms[].correct",
            "rewards.terms[].function",
            "rewards.token_efficiency",
        ),
        *(
            "rewards.range_control",
            "rl_strategy.filter.top_k",
            "rl_strategy.surrogate.cispo",
            "rl_strategy.kl",
            "rl_strategy.value",
        ),
        *("rl_strategy.weight.token_mean", "rl_strategy, type sft", "rollout", "training", "training.health", "training.dist"),
        *("training.signal_check", "training.resources", "evaluation", "monitor", "linear", "decay"),
    ],
)
def test_every_table_has_one_heading(heading: str) -> None:
    assert TEXT.splitlines().count(f"### {heading}") == 1


def test_every_class_says_what_it_is_and_names_every_field(script: ModuleType) -> None:
    for cls, heading in script.sections().items():
        body = TEXT.partition(f"### {heading}\n")[2].partition("\n#")[0]
        assert not script.meaning(cls).startswith(f"{cls.__name__}("), f"{cls.__name__} has no docstring"
        assert script.meaning(cls) in body
        assert re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE) == [f.name for f in dataclasses.fields(cls)]


def test_links_inside_the_page_lead_to_a_heading(script: ModuleType) -> None:
    anchors = [script.anchor(h) for h in re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)]
    assert len(set(anchors)) == len(anchors)
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) - set(anchors) == set()


def test_examples_load_and_mean_what_the_text_says() -> None:
    plain, rewards, moving, switched = [from_tree(load_yaml(b)) for b in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
    assert strategy(plain).surrogate == Clip(low=0.2, high=0.28, dual=3.0) and strategy(plain).kl is None
    assert plain.data.task in TASKS
    function = Function(path="my_rewards.py:brevity", weight=0.1, timeout_s=5.0)
    assert rewards.rewards.terms == (Correct(), Format(pattern="answer", weight=0.2), function)
    kl = strategy(moving).kl
    assert kl is not None and kl.coef == Linear(start=0.01, end=0.001, fraction=0.5)
    assert strategy(moving).surrogate == Clip(low=Decay(start=0.2, rate=0.95, every=100, floor=0.05), high=0.2, dual=3.0)
    assert strategy(switched).filter == TopK(k=2, metric="token_efficiency") and switched.rewards.token_efficiency is None


def test_another_part_by_set_needs_the_bare_name_first() -> None:
    tree = {"model": {"base_model_path": "tiny"}, "rl_strategy": {"surrogate": {"clip": {"high": 0.28}}}}
    field = "rl_strategy.surrogate.cispo.weight_max=2.0"
    with pytest.raises(BadInput, match="one of clip, cispo"):
        from_tree(override(tree, field))
    both = override(override(tree, "rl_strategy.surrogate=cispo"), field)
    assert strategy(from_tree(both)).surrogate == Cispo(weight_max=2.0)


def strategy(recipe: Recipe) -> PolicyGradient:
    assert isinstance(recipe.rl_strategy, PolicyGradient)
    return recipe.rl_strategy
