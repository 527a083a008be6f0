"""The demo, real from end to end with small recipes: two runs, one signal check, a gated version, a server of its own, an answer and what was said."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from policyloop.cli.demo import _own_figure, demo
from policyloop.cli.show import RECIPES
from policyloop.collect.trace import trace
from policyloop.config import override
from policyloop.recipe import load
from policyloop.run import known_from
from policyloop.store import open_store
from policyloop.training.folder import RunFolder

SMALL = {
    "tiny-sft": ("training.steps=10", "training.save_steps=10", "data.options.demonstrations=320", "evaluation.every=0"),
    "tiny-grpo": ("training.prompts_per_step=4", "evaluation.prompts=8", "training.signal_check={prompts: 4, min_share: 0}"),
    "tiny-gfpo": ("training.prompts_per_step=4", "evaluation.prompts=8", "training.signal_check={prompts: 4, min_share: 0}"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the runs, and what the terminal showed."""
    import contextlib
    import io

    place, shown = tmp_path_factory.mktemp("demo"), io.StringIO()
    for name, changes in SMALL.items():
        tree: Any = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
        for change in (*changes, "training.threads=1", "training.precision=fp32", "rollout.max_new_tokens=32"):
            tree = override(tree, change)
        (place / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
        patch.setenv("POLICYLOOP_CACHE", str(place / "cache"))
        patch.setattr("policyloop.cli.show.RECIPES", place)
        demo(place / "runs", tiny=True, prompts=8, steps=1)
    return place / "runs", shown.getvalue()


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in RunFolder(run).rows("events.jsonl") if row["kind"] == kind]


@pytest.mark.slow
def test_the_second_run_takes_over_what_the_first_measured_of_the_start_they_share(told: tuple[Path, str]) -> None:
    runs, shown = told
    first, second = runs / "demo-tiny-grpo", runs / "demo-tiny-gfpo"
    for kind in ("baseline", "signal_check"):
        (measured,), (known,) = events(first, kind), events(second, kind)
        assert "measured_by" not in measured and known.pop("measured_by") == first.name
        assert {**known, "at": 0} == {**measured, "at": 0}
    assert shown.count("untouched model, held out:") == 1
    recipe = load(runs.parent / "tiny-gfpo.yaml", ["training.steps=1", "evaluation.every=1"])
    there = RunFolder(first).manifest()["config"]["model"]["base_model_path"]
    alike = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, base_model_path=there))
    assert set(known_from(first, alike)) == {"baseline", "signal_check"}
    assert known_from(first, dataclasses.replace(alike, training=dataclasses.replace(alike.training, seed=1))) == {}
    bigger = dataclasses.replace(alike.rl_strategy, group_size=4)
    assert known_from(first, dataclasses.replace(alike, rl_strategy=bigger)) == {}


@pytest.mark.slow
def test_the_better_run_lies_in_the_store_with_the_gates_word_and_is_stable_only_if_that_is_ship(told: tuple[Path, str]) -> None:
    runs, shown = told
    store = open_store(str(runs / "demo-store"))
    (version,) = store.versions("demo-tiny")
    better = max(("demo-tiny-grpo", "demo-tiny-gfpo"), key=lambda name: events(runs / name, "evaluation")[-1]["eval/accuracy"])
    assert (version.lineage["run"], version.lineage["step"]) == (better, 1)
    types = [event.type for event in store.events("demo-tiny")]
    assert types[:2] == ["registered", "candidate"] and types[2].startswith("gate_")
    assert (store.state("demo-tiny").stable == 1) is ("gate_passed" in types) is ("promoted" in types)
    assert "registered @1" in shown and re.search(r"(SHIP|HOLD|INCONCLUSIVE): ", shown)


@pytest.mark.slow
def test_its_server_answered_by_that_version_and_left_and_the_store_knows_what_was_said(told: tuple[Path, str]) -> None:
    runs, shown = told
    assert "left with exit code 0" in shown
    (request,) = set(re.findall(r"request (req\S*|[0-9a-f-]{16,})", shown))
    found = trace(request, str(runs / "demo-store"))
    assert "demo-tiny@1" in str(found) and "'answer'" in str(found)
    circle = shown[shown.index("== the circle") :]
    assert [line.split()[0] for line in circle.splitlines()[1:5]] == ["trained", "proven", "stored", "served"]
    assert "policyloop serve demo-tiny@" in circle


def test_a_run_is_chosen_by_its_own_last_held_out_figure(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {}, {})
    assert _own_figure(run.path) == 0.0
    run.event("evaluation", 1, **{"eval/accuracy": 0.9})
    run.event("evaluation", 2, **{"eval/accuracy": 0.4})
    assert _own_figure(run.path) == 0.4
    run.unlock()
