"""The run folder: lines survive, half lines do not, a cut goes back to a step, two writers are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from policyloop.errors import BadInput, Conflict, Problem
from policyloop.training.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    made = RunFolder.create(tmp_path / "r", {"a": 1}, {"name": "r"})
    yield made
    made.unlock()


def test_cut_goes_back_to_a_step(folder: RunFolder) -> None:
    for step in (1, 2, 3):
        folder.metrics({"step": step, "reward/mean": step / 10})
        folder.samples(step, [{"step": step}])
        folder.event("save", step)
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')
    folder.cut(2)
    assert [row["step"] for row in folder.rows("metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in folder.rows("events.jsonl")] == [1, 2]
    assert sorted(p.name for p in (folder.path / "samples").iterdir()) == ["00000001.jsonl", "00000002.jsonl"]


def test_not_a_number_is_null(folder: RunFolder) -> None:
    folder.metrics({"step": 1, "grad_norm": float("nan"), "ratio/max": float("inf")})
    assert list(folder.rows("metrics.jsonl")) == [{"step": 1, "grad_norm": None, "ratio/max": None}]


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", {}, {}).unlock()
    with pytest.raises(BadInput, match="already holds a run"):
        RunFolder.create(tmp_path / "r", {}, {})


def test_one_writer(folder: RunFolder) -> None:
    other = RunFolder(folder.path)
    with pytest.raises(Conflict, match="another process"):
        other.lock()
    folder.unlock()
    other.lock()
    other.unlock()


def test_a_run_that_could_not_begin_leaves_nothing_and_the_mended_recipe_may_use_its_name(tmp_path: Path) -> None:
    from policyloop.cli.show import RECIPES
    from policyloop.recipe import load
    from policyloop.run import start

    changes = ["training.steps=1", "evaluation.every=0"]
    with pytest.raises(Problem):
        start(load(RECIPES / "tiny-sft.yaml", [*changes, "data.task=nowhere.jsonl"]), tmp_path / "run", say=lambda line: None)
    assert not (tmp_path / "run").exists()
    start(load(RECIPES / "tiny-sft.yaml", changes), tmp_path / "run", say=lambda line: None)
    assert (tmp_path / "run" / "manifest.json").exists()


def test_what_was_in_the_folder_before_stays(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, {})
    (tmp_path / "run" / "notes.txt").write_text("mine")
    folder.unlock()
    folder.discard()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["notes.txt"]
