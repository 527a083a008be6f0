"""Rounds without training: stages once each, hysteresis, what is waited for, wrong tables. The whole of it: tests/circle/test_improve.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policyloop.errors import BadInput
from policyloop.loop import Stage, improve
from policyloop.rounds import Improver, RoundNotes, load_improve
from policyloop.store.backend import open_backend


@pytest.fixture
def world(tmp_path: Path) -> Any:
    (tmp_path / "sft.yaml").write_text("model: {base_model_path: tiny}")
    (tmp_path / "rl.yaml").write_text("model: {base_model_path: tiny}")

    def made(**more: Any) -> Improver:
        tree = {
            "name": "arith",
            "store": str(tmp_path / "store"),
            "runs": str(tmp_path / "runs"),
            "stages": [{"name": "sft", "recipe": "sft.yaml"}, {"name": "rl", "recipe": "rl.yaml"}],
            "triggers": {"evidence": 3},
            "cooldown_s": 0.0,
            "budget": {"rounds_per_day": None},
            **more,
        }
        (tmp_path / "improve.yaml").write_text(json.dumps({"improve": tree}))
        return Improver(load_improve(tmp_path / "improve.yaml"), lambda line: None)

    return made


def test_a_round_runs_each_stage_once_and_ends_where_a_note_says(tmp_path: Path) -> None:
    notes, ran = RoundNotes(open_backend(str(tmp_path)), "improve/x/000001"), list[str]()

    def stage(name: str, **note: Any) -> Stage:
        return Stage(name, lambda done: (ran.append(name), {"saw": sorted(done), **note})[1])

    stages = [stage("a"), stage("b", ends=True), stage("c")]
    assert improve(stages, notes)["b"]["saw"] == ["a"]
    improve(stages, notes)
    assert ran == ["a", "b"]
    assert notes.write("a", {"other": 1})["saw"] == []  # create-only: what stands there is right


def test_levels_open_no_second_round_until_they_were_calm(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from policyloop.triggers import Signals

    improver, level = world(), [0.5]
    monkeypatch.setattr(improver, "stable", lambda: object())
    monkeypatch.setattr(improver, "signals", lambda now: Signals(0, level[0]))
    assert improver.open_round() == 1
    improver.notes(1).write("end", {"outcome": "kept"})
    assert str(improver.open_round()).startswith("wait")
    level[0] = 0.01
    assert str(improver.open_round()).startswith("wait")
    level[0] = 0.5
    assert improver.open_round() == 2


def test_quiet_hours_cooldown_and_budget_wait(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for change, told in (
        ({"quiet": ["00:00-12:00", "12:00-23:59", "23:59-00:00"]}, "quiet hours"),
        ({"cooldown_s": 1e6}, "cooldown_s"),
        ({"budget": {"rounds_per_day": 1}}, "rounds_per_day"),
    ):
        improver = world(**change)
        improver.notes(1).write("trigger", {"reason": "first"})
        improver.notes(1).write("end", {"outcome": "kept"})
        monkeypatch.setattr(improver, "stable", lambda: object())
        assert told in str(improver.open_round())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"stages": []}, "at least one"),
        ({"stages": [{"name": "a", "recipe": "gone.yaml"}]}, "gone.yaml"),
        ({"stages": [{"name": "a", "recipe": "rl.yaml", "base": "b"}]}, "starts from b"),
        ({"quiet": ["late"]}, "late"),
        ({"typo": 1}, "typo"),
    ],
)
def test_a_wrong_table_is_told(world: Any, change: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        world(**change)
