"""Run folders as JSON: expected figures follow from the formulas of made_run."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_world import make_run

from policyloop.evaluation.report_data import RunData
from policyloop.ui import find_runs
from policyloop.ui.runs import curve, group_row, open_run, pass_map, writing

Page = Callable[[str], Any]


def test_a_run_is_found_by_itself_in_a_folder_and_one_level_deeper(tmp_path: Path) -> None:
    make_run(tmp_path / "a", steps=2)
    make_run(tmp_path / "seeds" / "0", steps=2)
    assert list(find_runs(tmp_path)) == ["a", "seeds~0"]
    assert list(find_runs(tmp_path / "a")) == ["a"]
    assert find_runs(tmp_path / "nothing") == {}


def test_the_table_says_how_far_and_how_good(page: Page) -> None:
    rows = {r["run"]: r for r in page("runs")["runs"]}
    assert set(rows) == {"first", "second"}
    first = rows["first"]
    assert (first["steps"], first["of"], first["type"], first["guards"], first["training"]) == (60, 60, "gfpo", 2, False)
    assert first["best"]["step"] == 40 and first["best"]["accuracy"] == 0.8  # better than the 0.75 of step 60
    assert first["start"]["accuracy"] == 0.2  # the untouched model at the run's own 32 tokens, not at 128
    assert first["seconds"] == 60 * 3.0


def test_a_run_shows_its_curves_with_interval_and_baselines(page: Page) -> None:
    run = page("runs/first")
    assert [(p["step"], p["accuracy"]) for p in run["held_out"]] == [(0, 0.2), (20, 0.5), (40, 0.8), (60, 0.75)]
    assert run["held_out"][1]["low"] == pytest.approx(0.43) and run["held_out"][1]["high"] == pytest.approx(0.56)
    assert [b["limit"] for b in run["baselines"]] == [32, 128]
    assert run["curves"]["groups/signal_frac"] == [[n, 0.5] for n in range(1, 61)]
    assert 7 not in [s for s, _ in run["curves"]["grad_norm"]]  # not a number there
    assert run["sampled"] == [1, 5, 60]


def test_a_step_lists_groups_by_signal_and_a_group_its_answers_by_reward(page: Page) -> None:
    (row,) = page("runs/first/steps/60")["groups"]
    assert (row["right"], row["kept"], row["size"]) == (0.5, 3, 4)
    group = page("runs/first/steps/60/groups/0")
    assert [a["reward"] for a in group["answers"]] == [1.2, 1.0, 0.0, -0.5]
    best = group["answers"][0]
    assert best["parts"] == {"correct": 1.0, "format": 0.2, "stop": 0.0}
    assert best["tokens"][3] == ["+", pytest.approx(0.4)]  # -0.5 after, -0.9 before
    assert group["answers"][3]["keep"] is False
    assert page("runs/first/steps/5/groups/0")["answers"][0]["change"] is None


def test_groups_of_equal_rewards_have_no_signal() -> None:
    def group(*rewards: float | None) -> dict[str, Any]:
        answers = [{"reward": r, "keep": True, "length": 1, "metric": r, "logprobs": []} for r in rewards]
        return {"prompt_id": "p", "prompt": "?", "completions": answers}

    assert group_row(0, group(1.0, 1.0))["signal"] == 0.0
    assert group_row(0, group(1.0, 0.0))["signal"] == 0.5  # the standard deviation of 0 and 1
    assert group_row(0, group(None, None))["reward"] is None


def test_the_map_holds_the_share_of_right_answers(world: Any, page: Page) -> None:
    found = page("runs/first/map")
    assert found["steps"] == [1, 5, 60]
    assert {p["prompt_id"]: p["cells"] for p in found["prompts"]} == {
        "p1": [[1, 0.5, 0]],
        "p5": [[5, 0.5, 0]],
        "p60": [[60, 0.5, 0]],
    }
    assert pass_map(open_run(world[0], "first"))["left_out"] == 0


def test_a_long_curve_keeps_its_last_point(tmp_path: Path) -> None:
    run = RunData("long", tmp_path, [{"step": n, "entropy": 1.0} for n in range(1, 1002)], [], {}, "", {})
    points = curve(run, "entropy")
    assert len(points) <= 502 and points[0][0] == 1 and points[-1][0] == 1001


def test_whoever_trains_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", steps=1)
    assert not writing(run)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert writing(run)
    assert not writing(run)
