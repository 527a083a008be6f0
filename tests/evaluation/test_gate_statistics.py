"""A small run of benchmarks/gate_statistics.py: the gate does not ship what is equal, and ships what is better once there are items enough."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from policyloop.evaluation import GateSettings


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "gate_statistics.py"
    spec = importlib.util.spec_from_file_location("gate_statistics", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_equal_models_rarely_ship_and_better_ones_often(simulation: ModuleType) -> None:
    """40 gates each: of a 5 % error more than 6 come up once in 70 000 runs; the seed makes it one and the same."""
    equal = simulation.verdicts(40, 300, 0.0, 0.7, GateSettings(), seed=1)
    assert equal["SHIP"] <= 6
    better = simulation.verdicts(20, 1319, 0.05, 0.7, GateSettings(), seed=1)
    assert better["SHIP"] >= 16 and better["HOLD"] == 0
