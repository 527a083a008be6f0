"""docs/own-algorithm.md, walked through: the file, the recipe, the table line and the test that it shows."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from policyloop.algorithms import ALGORITHMS
from policyloop.algorithms.plain import batch_of
from policyloop.config import load_yaml
from policyloop.recipe import from_tree, load, tree_of
from policyloop.run import start

PAGE = (Path(__file__).parents[2] / "docs" / "own-algorithm.md").read_text(encoding="utf-8")
FILE, LINE, TEST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(RECIPE,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def digits(completions: list[str]) -> list[float]:
    return [sum(c.isdigit() for c in text) / (1 + len(text)) for text in completions]


@pytest.fixture
def damped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "damped.py").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "damped", raising=False)
    return importlib.import_module("damped")


def trained(tree: dict[str, Any], folder: Path) -> dict[str, float]:
    recipe = load({**tree, "rewards": {"terms": [{f"{__file__}:digits": {}}]}, "evaluation": {"every": 0}})
    assert from_tree(tree_of(recipe)).rl_strategy == recipe.rl_strategy
    start(recipe, folder, say=lambda line: None)
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_class_of_one_s_own_in_a_slot(damped: ModuleType, tmp_path: Path) -> None:
    tree = load_yaml(RECIPE)
    strategy = load(tree).rl_strategy
    assert getattr(strategy, "surrogate", None) == damped.Damped(power=0.7)
    assert trained(tree, tmp_path / "run")["update/ok"] == 2


def test_one_table_line_makes_it_an_algorithm(damped: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "damped", None)  # so that the line's effect is taken back
    exec(LINE, {"ALGORITHMS": ALGORITHMS, "DAMPED": damped.DAMPED})
    tree = {**load_yaml(RECIPE), "rl_strategy": {"type": "Damped", "group_size": 4}}
    assert trained(tree, tmp_path / "run")["update/ok"] == 2


def test_the_page_s_test_holds(damped: ModuleType) -> None:
    spec = importlib.util.spec_from_file_location("laws_of_parts", Path(__file__).parent / "test_laws_of_parts.py")
    assert spec is not None and spec.loader is not None
    laws = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(laws)
    g = torch.Generator().manual_seed(0)
    logprobs = -torch.rand(4, 3, generator=g, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
    batch = batch_of(mask, torch.tensor([1.0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), old_logprobs_NT=logprobs - 0.2)
    names: dict[str, Any] = dict(vars(damped))
    exec(TEST, names)
    names["test_damped"](laws.gradient, batch, logprobs)
