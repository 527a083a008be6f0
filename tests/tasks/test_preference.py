"""Preference rows in the layouts that people have, and every fault with its file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.checking import faults
from policyloop.tasks.preference import PreferenceTask, transcript
from policyloop.types import Completion, Message

USER = {"role": "user", "content": "2+3?"}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


LAYOUTS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "2+3?", "chosen": "5", "rejected": "6"},
    "question": {"question": "2+3?", "chosen": "5", "rejected": "6"},
    "explicit messages": {"prompt": [USER], "chosen": [said("5")], "rejected": [said("6")]},
    "implicit prompt": {"chosen": [USER, said("5")], "rejected": [USER, said("6")]},
    "text beside whole conversations": {"prompt": "2+3?", "chosen": [USER, said("5")], "rejected": [USER, said("6")]},
    "one message": {"prompt": [USER], "chosen": said("5"), "rejected": said("6")},
    "share gpt": {
        "conversations": [{"from": "human", "value": "2+3?"}],
        "chosen": {"from": "gpt", "value": "5"},
        "rejected": {"from": "gpt", "value": "6"},
    },
    "openai": {"input": {"messages": [USER]}, "preferred_output": [said("5")], "non_preferred_output": [said("6")]},
    "transcript": {"chosen": "\n\nHuman: 2+3?\n\nAssistant: 5", "rejected": "\n\nHuman: 2+3?\n\nAssistant: 6"},
    "alpaca": {"instruction": "2+3?", "input": "", "chosen": "5", "rejected": "6"},
}


@pytest.mark.parametrize("row", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_same_pair(row: dict[str, Any]) -> None:
    (prompt,) = PreferenceTask.from_rows([row], DataSettings(task="preference", held_out_share=0.0)).train()
    assert prompt.messages == (Message("user", "2+3?"),)
    assert (prompt.meta["chosen"], prompt.meta["rejected"], prompt.meta["demonstration"]) == ("5", "6", "5")


def test_system_scores_and_other_columns_stay() -> None:
    row = {**LAYOUTS["text"], "system": "Be brief.", "score_chosen": 8, "score_rejected": "2.5", "source": "a"}
    (prompt,) = PreferenceTask.from_rows([row], DataSettings(task="preference", held_out_share=0.0)).train()
    assert prompt.messages == (Message("system", "Be brief."), Message("user", "2+3?"))
    assert (prompt.meta["score_chosen"], prompt.meta["score_rejected"], prompt.meta["source"]) == (8.0, 2.5, "a")


def test_prompts_stay_text_where_asked_for() -> None:
    settings = DataSettings(task="preference", held_out_share=0.0, prompt_as="text")
    assert PreferenceTask.from_rows([LAYOUTS["text"]], settings).train()[0].text == "2+3?"


def test_several_turns_are_the_prompt() -> None:
    turns = [USER, said("what?"), {"role": "user", "content": "two and three"}]
    row = {"chosen": [*turns, said("5")], "rejected": [*turns, said("6")]}
    (prompt,) = PreferenceTask.from_rows([row], DataSettings(task="preference", held_out_share=0.0)).train()
    assert [m.role for m in prompt.messages or ()] == ["user", "assistant", "user"]


def test_a_pair_is_compared_and_an_answer_alone_is_not_graded() -> None:
    task = PreferenceTask.from_rows([LAYOUTS["text"]], DataSettings(task="preference", held_out_share=0.0))
    (prompt,) = task.train()
    assert prompt.target is None and task.grade(prompt, Completion((1,), (2,), (0.0,), "stop", "x#0", "5")) is None


def test_pairs_of_one_question_stay_on_one_side_of_the_cut(tmp_path: Path) -> None:
    rows = [{"prompt": f"{q}?", "chosen": "yes", "rejected": f"no {i}"} for q in range(60) for i in range(2)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    task = load_task(DataSettings(task="preference", path=str(tmp_path / "pairs.jsonl"), held_out_share=0.2), 0)
    train, held = ({p.messages for p in prompts} for prompts in (task.train(), task.held_out(0)))
    assert not train & held and len(task.train()) + len(task.held_out(0)) == 120 and 5 <= len(held) <= 20


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no side": ({"prompt": "q", "chosen": "a"}, "no column is known as the rejected"),
    "empty side": ({"prompt": "q", "chosen": "a", "rejected": " "}, r"line 2: rejected is empty"),
    "missing side": ({"prompt": "q", "chosen": None, "rejected": "b"}, r"line 2: chosen is missing"),
    "equal sides": ({"prompt": "q", "chosen": "a", "rejected": "a"}, r"line 2: chosen and rejected are the same text"),
    "no prompt": ({"prompt": None, "chosen": "a", "rejected": "b"}, r"line 2: there is no prompt"),
    "a number in a list": ({"prompt": "q", "chosen": [5], "rejected": "b"}, r"line 2: message 1 of chosen is a "),
    "user last": ({"prompt": "q", "chosen": [USER], "rejected": [USER]}, r"line 2: chosen does not end with an answer"),
    "different prompts": (
        {"prompt": "q", "chosen": [USER, said("a")], "rejected": [{"role": "user", "content": "x"}, said("b")]},
        r"line 2: chosen and rejected differ before the answer, from message 1 on",
    ),
    "score in words": (
        {"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": "good"},
        r"line 2: score_chosen is 'good'",
    ),
}


@pytest.mark.parametrize(("row", "message"), FAULTS.values(), ids=FAULTS)
def test_faults_name_file_and_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = {} if "rejected" not in row else LAYOUTS["text"]
    (tmp_path / "pairs.jsonl").write_text(json.dumps(good or {**row, "prompt": "x"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(BadInput, match=message) as found:
        load_task(DataSettings(task="preference", path=str(tmp_path / "pairs.jsonl")), 0)
    assert "pairs.jsonl" in str(found.value)


def test_single_labelled_answers_are_told_from_pairs() -> None:
    with pytest.raises(BadInput, match="single labelled answers"):
        PreferenceTask.from_rows([{"prompt": "q", "completion": "a", "label": True}], DataSettings(task="preference"))


def test_only_a_transcript_is_read_as_one() -> None:
    assert transcript("\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:  d") == (
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c"),
        Message("assistant", "d"),
    )
    assert transcript("Assistant: d") is None and transcript("What did Human: say?") is None


def test_check_names_every_faulty_row_and_knows_prompts_inside_the_sides(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(LAYOUTS["implicit prompt"]) + "\n")
    settings = DataSettings(task="preference", path=str(path))
    assert faults(settings) == []
    bad = [
        {"chosen": [USER, said("a")], "rejected": [USER, said("a")]},
        {"chosen": [USER, said("a")], "rejected": [USER, said("")]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [LAYOUTS["implicit prompt"], *bad]))
    assert [str(f).partition(": ")[0].rpartition("/")[2] for f in faults(settings)] == [
        "pairs.jsonl line 2",
        "pairs.jsonl line 3",
    ]
