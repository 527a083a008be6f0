"""The report of a run folder such as training leaves it (made_run): self-contained, safe, with the numbers in it; one group in the terminal."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_run import ANSWERS, CONFIG, group, make_run

from policyloop.errors import BadInput, NotFound
from policyloop.evaluation.evaluate import Evaluation, Item
from policyloop.evaluation.report import explain, write_report
from policyloop.evaluation.report_data import (
    SHAPING,
    by_reward,
    changes,
    contributions,
    groups_of,
    mean_change,
    pick_group,
    read_run,
    telling_groups,
)
from policyloop.evaluation.report_html import group_picture, page, shade_of, stacked, style
from policyloop.evaluation.report_plots import Line, figure, running_mean
from policyloop.evaluation.report_words import at_a_glance, clock, differences, summary
from policyloop.training.folder import RunFolder

WEIGHTS = {"correct": 1.0, "format": 0.2, "stop": 0.5}


@pytest.fixture(scope="module")
def html(run_folder: Path) -> str:
    return write_report([run_folder], run_folder / "report.html").read_text(encoding="utf-8")


# --- the page ---------------------------------------------------------------------------------------------------------------


class Balanced(HTMLParser):
    """Every tag that is opened is closed, in order."""

    VOID = frozenset({"meta", "br", "rect", "path", "use"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open and self.open.pop() == tag, (tag, self.getpos())


def test_one_page_that_needs_nothing_else(html: str) -> None:
    assert "src=" not in html and "<script" not in html and "@import" not in html and "http" not in html
    assert set(re.findall(r'href="(.)', html)) <= {"#"}
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_ids_are_unique_and_every_reference_is_there(html: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', html)) <= {(i, "") for i in ids} | {("", i) for i in ids}


def test_light_and_dark_follow_the_reader(html: str) -> None:
    """No plot has a colour of its own: all are variables that both schemes set."""
    plots = "".join(re.findall(r'<div role="img".*?</div>', html, re.DOTALL))
    assert plots and not re.search(r"(stroke|fill): #", plots)
    light, _, dark = style().partition("prefers-color-scheme:dark")
    used = set(re.findall(r"var\((--[\w-]+)\)", plots))
    assert used and all(f"{name}:" in light and f"{name}:" in dark for name in used)


def test_model_text_is_text(html: str) -> None:
    assert " &lt;b&gt;8" in html and "<b>8" not in html and "apples &amp; gets" in html


def test_the_numbers_are_on_the_page(html: str) -> None:
    for part in (
        "went from 0.200 [0.150, 0.260] to 0.750 [0.680, 0.810] in 60 steps; the intervals do not overlap",
        "untouched model, at most 128 tokens: 0.300 [0.250, 0.360], n = 200",
        "She has 3 apples",
        "grad_norm is 1.2",
        "plan: 60 steps of 8 prompts x 4 = 32 sequences",
        "left out by the filter",
        "+0.400 nats, log-prob -0.900 to -0.500",
        "lr: 0.0002",
    ):
        assert part in html, part


def test_every_curve_there_is_data_for_and_no_other(html: str) -> None:
    titles = re.findall(r"<figcaption><b>(.*?)</b>", html)
    assert titles == [
        "Held-out accuracy", "Reward", "Accuracy against length", "Length", "Groups that teach", "Cut off",
        "Reward part: correct", "Reward part: format", "Reward part: stop", "Entropy", "Gradient norm",
    ]  # fmt: skip


def test_several_runs_and_a_saved_baseline(run_folder: Path, tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["training"]["lr"] = 1e-4
    other = make_run(tmp_path / "other", steps=20, offset=-0.1, config=config)
    items = tuple(Item(f"p{i}", f"p{i}", 0, i < 40, 12, False, "") for i in range(100))
    measured = Evaluation("base", "t", {"decoding": {"max_new_tokens": 256}}, items)
    text = write_report([run_folder, other], tmp_path / "both.html", [measured]).read_text(encoding="utf-8")
    assert "base, at most 256 tokens: 0.400 [0.309, 0.498], n = 100" in text  # Wilson of 40 of 100
    assert "<code>training.lr</code></td><td>0.0002</td><td>0.0001</td>" in text and "training.steps</code>" not in text
    assert 'class="runs"' in text and "It has done 20 of 60 steps." in text
    assert text.count("untouched model, at most 32 tokens") == 1  # the same line of both runs is drawn once


def test_what_is_not_there_is_said(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds no run"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(NotFound, match=r"no samples of step 9.*1 to 60"):
        groups_of(run_folder, 9)
    with pytest.raises(NotFound, match="no prompt zzz"):
        pick_group(groups_of(run_folder, 1), "zzz")
    empty = RunFolder.create(tmp_path / "empty", {}, {})
    empty.unlock()
    with pytest.raises(BadInput, match="has not finished a step"):
        write_report([tmp_path / "empty"], tmp_path / "r.html")
    with pytest.raises(NotFound, match=r"none \(rollout\.samples is 0"):
        groups_of(tmp_path / "empty")


def test_a_bare_run_makes_a_page_too(tmp_path: Path) -> None:
    """One step, no configuration, no evaluation, no samples, a half-written last line."""
    folder = RunFolder.create(tmp_path / "bare", {}, {})
    folder.metrics({"step": 1, "loss/sft": 2.0, "length/mean": 5.0})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss')
    folder.event("guard", 1, guard="non_finite", action="skip", loss=None, grad_norm=None)
    folder.unlock()
    text = page([read_run(folder.path)])
    assert "Supervised loss" in text and "Nothing was measured on held-out prompts" in text and "non_finite: skip" in text
    assert "<b>Length</b>" not in text  # lengths of demonstrations are no sampled lengths


# --- words ------------------------------------------------------------------------------------------------------------------


def test_what_happened_in_words(run_folder: Path) -> None:
    said = summary(read_run(run_folder))
    assert said[1] == "The best evaluation was that of step 40: 0.800 [0.730, 0.860]."
    assert said[2] == "Answers became 50% shorter: 30.0 to 15.0 tokens."
    assert "Allowed 128 tokens, the untouched model reaches 0.300 [0.250, 0.360]." in said
    assert any(s.startswith("59% of the answers sampled in the first step were cut off") for s in said)
    assert "Health, steps 3, 9: grad_norm is 1.2, the limit is 1: watch the held-out curve." in said
    assert "It was interrupted and resumed 1 time." in said


def test_at_a_glance(run_folder: Path) -> None:
    name, cells = at_a_glance(read_run(run_folder))
    assert name == "gfpo"
    assert cells[:3] == [("0.200", "[0.150, 0.260]"), ("0.750", "[0.680, 0.810]"), ("0.800", "step 40")]
    assert cells[5:] == [
        ("0%", "from 59%"), ("50%", "mean over steps"), ("60,000", "60 steps"), ("3 min 00 s", "sampling and updates"),
    ]  # fmt: skip
    assert (clock(5), clock(65), clock(3 * 3600 + 61)) == ("5 s", "1 min 05 s", "3 h 01 min")


def test_best_is_what_the_recipe_calls_best(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["evaluation"] |= {"metric": "length_mean", "better": "lower"}
    best = read_run(make_run(tmp_path / "r", config=config)).best
    assert best is not None and best["step"] == 60


def test_the_curve_starts_at_the_baseline_with_its_own_limit(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["evaluation"]["max_new_tokens"] = 128
    assert read_run(make_run(tmp_path / "r", config=config)).held_out[0]["accuracy"] == 0.3


def test_differences_of_configurations(run_folder: Path, tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    config["rewards"]["terms"] = config["rewards"]["terms"][:1]
    del config["rollout"]
    other = read_run(make_run(tmp_path / "o", steps=1, config=config))
    found = dict(differences([read_run(run_folder), other]))
    assert set(found) == {"rewards.terms", "rollout.max_new_tokens"} and found["rollout.max_new_tokens"] == ["32", "-"]


# --- one group --------------------------------------------------------------------------------------------------------------


def test_answers_by_reward_and_what_each_part_gave() -> None:
    answers = by_reward(group(60))
    assert [c["reward"] for c in answers] == [1.2, 1.0, 0.0, -0.5]
    assert contributions(answers[0], WEIGHTS) == {"correct": 1.0, "format": 0.2, "stop": 0.0}
    assert contributions(answers[2], WEIGHTS) == {"correct": 0.0, "stop": 0.0}  # format does not apply
    assert contributions(answers[3], WEIGHTS)["stop"] == -0.5
    shaped = {**answers[0], "reward": 1.05}  # a length term took 0.15
    assert contributions(shaped, WEIGHTS)[SHAPING] == pytest.approx(-0.15)
    assert contributions(answers[3], {}) == {"correct": 0, "format": 0, "stop": -1}  # not summed: raw values
    unscored = {**answers[0], "reward": None, "components": {"correct": None, "format": 1.0}}
    assert contributions(unscored, WEIGHTS) == {"format": 1.0}
    assert by_reward({"completions": [unscored, answers[3]]})[-1]["reward"] is None


def test_weights_are_read_from_the_recipe(run_folder: Path) -> None:
    run = read_run(run_folder)
    assert run.weights == WEIGHTS
    normalised = {**run.config, "rewards": {**run.config["rewards"], "combine": "normalize_then_sum"}}
    assert type(run)("n", run.path, [], [], normalised, "", {}).weights == {}
    function = {"rewards": {"terms": [{"function": {"path": "my.py:brevity", "weight": 0.1, "name": ""}}]}}
    assert type(run)("f", run.path, [], [], function, "", {}).weights == {"brevity": 0.1}


def test_changes_are_after_minus_before() -> None:
    best = by_reward(group(60))[0]
    texts, _, before, after, *_ = ANSWERS[0]
    assert changes(best) == pytest.approx([a - b for a, b in zip(after, before, strict=True)])
    assert mean_change([best]) == pytest.approx((sum(after) - sum(before)) / len(texts))
    assert mean_change([{**best, "logprobs_after": None}]) is None
    holes = {**best, "logprobs": [None, *before[1:]]}
    assert changes(holes)[0] is None and changes(holes)[1] == pytest.approx(0.0)


def test_stacked_parts_share_one_scale_and_one_zero() -> None:
    """From -0.5 to +1.2 over 116 units: zero lies at 2 + 0.5 / 1.7 · 116 in every bar."""
    bars = stacked([{"a": 1.0, "b": 0.2}, {"a": 0.0, "c": -0.5}], ["a", "b", "c"])
    zero = f"{2 + 0.5 / 1.7 * 116:.1f}"
    assert all(f'd="M{zero} 0V14"' in bar for bar in bars)
    assert f'<rect x="{zero}" y="2" width="{116 / 1.7:.1f}"' in bars[0]
    assert f'<rect x="2.0" y="2" width="{0.5 * 116 / 1.7:.1f}"' in bars[1]


def test_tokens_are_shaded_by_their_change() -> None:
    picture = group_picture(group(60), WEIGHTS)
    assert shade_of(group(60)["completions"]) == pytest.approx(0.5)
    assert '<span class="u5" title="+0.500 nats' in picture and '<span class="d5" title="-0.500 nats' in picture
    assert '<span class="u4" title="+0.400 nats' in picture
    assert '<span title="+0.000 nats' in picture  # untouched: no shade
    assert "higher reward +0.185, answers of lower reward -0.106 nats" in picture  # 1.85 over 10 tokens, -0.85 over 8


def test_without_log_probs_after_the_update_that_is_said() -> None:
    assert "were not kept for this group (rollout.explain_every)" in group_picture(group(5), WEIGHTS)


def test_a_very_long_answer_loses_its_middle() -> None:
    long = group(60)
    long["completions"] = [{**long["completions"][0], "tokens": ["x"] * 4000, "logprobs": [-1.0] * 4000, "logprobs_after": None}]
    picture = group_picture(long, WEIGHTS)
    assert "3500 tokens" in picture and picture.count(">x<") == 500


def test_the_telling_groups_are_the_newest_and_an_early_one(run_folder: Path) -> None:
    assert [g["step"] for g in telling_groups(read_run(run_folder))] == [60, 1]


# --- plots ------------------------------------------------------------------------------------------------------------------


def test_a_running_mean_has_no_lag() -> None:
    assert running_mean([0, 0, 3, 0, 0], reach=1) == [0, 1, 1, 1, 0]
    assert running_mean(list(range(40))) == pytest.approx(range(40))


def test_nothing_to_draw_is_no_figure() -> None:
    assert figure("t", "", "u", [Line("a", 0, [], [])]) == ""
    one = figure("t", "", "u", [Line("a", 0, [1], [0.5])])
    assert "a from 0.5 to 0.5" in one and "0.95" not in one  # a step is a whole number, also when it is the only one


def test_equal_data_gives_an_equal_figure() -> None:
    draw = lambda: figure("t", "", "u", [Line("a", 0, [1, 2], [0.5, 0.7], [0.4, 0.6], [0.6, 0.8], points=True)])  # noqa: E731
    assert draw() == draw()


# --- the terminal -----------------------------------------------------------------------------------------------------------


def test_a_group_in_the_terminal(run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    explain(run_folder, 60, "0")
    out = capsys.readouterr().out
    assert "step 60, prompt p60" in out and "right answer: 7" in out and "It is <b>8</b>" in out
    assert re.search(r"1 +1\.20 +correct \+1\.00, format \+0\.20 +yes +\+1\.21 +yes +8 stop +\+0\.175 nats", out)
    assert re.search(r"4 +-0\.50 +stop -0\.50 +no +\+0\.00 +no +8 length", out)
    assert "largest changes, nats: " in out and "'<eos>' +0.500 (answer 1)" in out
    explain(run_folder, None, "p60/0/0")  # the newest step that was kept
    assert "step 60, prompt p60" in capsys.readouterr().out
    explain(run_folder, 5)
    assert "were not kept for this group" in capsys.readouterr().out
