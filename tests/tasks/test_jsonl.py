"""Own data from files and from Python (cases G07, G10, G11, D09)."""

import json

import pytest

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.jsonl import JsonlTask, load
from policyloop.types import Completion, Message

TEXT = DataSettings(grader="text")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_answers_keep_their_literal_and_other_columns_their_value(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"q": "a", "answer": 1, "level": 3}\n{"q": "b", "answer": "007"}\n{"q": "c", "answer": "1,080"}\n'
                    '{"q": "d", "answer": 1e3}\n')  # fmt: skip
    settings = DataSettings(path=str(path), columns={"prompt": "q"}, held_out_share=0.0, grader="text")
    prompts = load_task(settings, 0).train()
    assert [p.target for p in prompts] == ["1", "007", "1,080", "1e3"]
    assert [dict(p.meta) for p in prompts] == [{"level": 3}, {}, {}, {}]
    assert prompts[0].messages == (Message("user", "a"),)


def test_duplicate_prompts_stay_and_are_counted():
    task = JsonlTask.from_rows(
        [{"question": q, "answer": "x"} for q in ("a", "a", "b")], DataSettings(grader="text", held_out_share=0.0)
    )
    assert len(task.train()) == 3
    assert task.train()[0] == task.train()[1]
    assert "1 training rows repeat an earlier question; each stays a prompt of its own" in task.notes


def test_the_held_out_share_is_cut_once_whatever_the_framing():
    rows = [{"question": f"question {n}", "answer": "x"} for n in range(200)]
    plain = JsonlTask.from_rows(rows, TEXT)
    framed = JsonlTask.from_rows(rows, DataSettings(grader="text", answer_format="One word."))
    assert 5 < len(plain.held_out()) < 40
    assert [i.spoken for i in plain.held_out_items] == [i.spoken for i in framed.held_out_items]
    assert not {p.id for p in plain.train()} & {p.id for p in plain.held_out()}
    one, two = plain.held_out(1), plain.held_out(2)
    assert [p.id for p in one] != [p.id for p in two]
    assert {p.id for p in one} == {p.id for p in two}


def test_a_folder_brings_its_own_test_rows(tmp_path):
    write(tmp_path / "train.jsonl", [{"question": "a", "answer": "x"}])
    write(tmp_path / "test.jsonl", [{"question": "b", "answer": "x"}])
    task = load(DataSettings(path=str(tmp_path), grader="text"), 0)
    assert [i.spoken for i in task.train_items] == ["a"]
    assert [i.spoken for i in task.held_out_items] == ["b"]


@pytest.mark.parametrize("action", ["refuse", "drop", "warn"])
def test_test_rows_in_the_training_rows(tmp_path, action):
    train = write(tmp_path / "a.jsonl", [{"question": q, "answer": "x"} for q in ("one", "two", "How many?")])
    test = write(tmp_path / "b.jsonl", [{"question": q, "answer": "x"} for q in ("how  many?", "four")])
    settings = DataSettings(path=train, eval=test, grader="text", overlap=action)
    if action == "refuse":
        with pytest.raises(
            BadInput, match=r"1 of 2 held-out questions are also in the training rows \(.*a.jsonl line 3 = .*b.jsonl line 1"
        ):
            load(settings, 0)
        return
    task = load(settings, 0)
    assert len(task.train()) == {"drop": 2, "warn": 3}[action]
    assert any("1 of 2 held-out questions" in note for note in task.notes)


def test_system_and_demonstration_columns():
    rows = [{"question": "a", "answer": "1", "system": "S", "steps": "because"}]
    task = JsonlTask.from_rows(rows, DataSettings(grader="text", held_out_share=0.0, columns={"demonstration": "steps"}))
    (prompt,) = task.train()
    assert prompt.messages == (Message("system", "S"), Message("user", "a"))
    assert dict(prompt.meta) == {"demonstration": "because"}


def test_rows_without_answers_are_counted():
    task = JsonlTask.from_rows([{"question": "a", "answer": None}, {"question": "b", "answer": "x"}],
                               DataSettings(grader="text", held_out_share=0.0))  # fmt: skip
    assert [p.target for p in task.train()] == [None, "x"]
    assert "1 training rows have no answer and are never graded" in task.notes


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (DataSettings(), "data.path is missing"),
        (DataSettings(path="a.jsonl", options={"size": 3}), "no options for task jsonl"),
    ],
)
def test_settings_that_cannot_work(settings, said):
    with pytest.raises(BadInput, match=said):
        load(settings, 0)


def test_too_few_rows():
    with pytest.raises(BadInput, match="there are no rows"):
        JsonlTask.from_rows([], DataSettings())
    with pytest.raises(BadInput, match="leave none for training"):
        JsonlTask.from_rows([{"question": "a", "answer": "x"}], TEXT)


def test_the_grader_follows_the_answers():
    numbers = [{"question": f"q{n}", "answer": n} for n in range(9)] + [{"question": "last", "answer": "see the figure"}]
    task = JsonlTask.from_rows(numbers, DataSettings())
    assert task.verdict.grader == "math"
    assert "1 of 10 answers looked at are no values (numbers, expressions) and are never graded" in task.notes
    words = [{"question": f"q{n}", "answer": f"city of {n * 'o'}"} for n in range(9)]
    assert JsonlTask.from_rows(words, DataSettings()).verdict.grader == "text"
    assert JsonlTask.from_rows(words, DataSettings(grader="math")).verdict.grader == "math"
    sure = JsonlTask.from_rows(numbers, DataSettings(held_out_share=0.0))
    done = Completion((1,), (2,), (-0.1,), "length", "run#0", "The answer is 3.")
    assert [sure.grade(p, done) for p in sure.train()] == [n == 3 for n in range(9)] + [None]
