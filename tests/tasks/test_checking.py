"""What `data check` finds (cases G05, G10, G11)."""

import json

from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.checking import faults, findings


def rows(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_all_faults_of_both_files_are_found(tmp_path):
    good = {"question": "a", "answer": "1"}
    train = rows(tmp_path / "a.jsonl", good, "nope", good, {"question": "", "answer": "1"}, {"question": "b", "answer": ["1"]})
    test = rows(tmp_path / "b.jsonl", "[]", good)
    found = faults(DataSettings(path=train, eval=test))
    assert [f.where.removeprefix(f"{tmp_path}/") for f in found] == [
        "a.jsonl line 2",
        "a.jsonl line 4",
        "a.jsonl line 5 or data.columns",
        "b.jsonl line 1",
    ]
    assert faults(DataSettings(task="word_problems")) == []


def test_a_file_of_faults_names_the_fault_and_not_its_emptiness(tmp_path):
    assert ["is not JSON" in f.given for f in faults(DataSettings(path=rows(tmp_path / "a.jsonl", "nope")))] == [True]
    assert ["is empty" in f.given for f in faults(DataSettings(path=rows(tmp_path / "b.jsonl", "")))] == [True]
    assert ["does not exist" in f.given for f in faults(DataSettings(path=str(tmp_path / "c.jsonl")))] == [True]


def test_findings_of_own_rows(tmp_path):
    long = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in {}. How many clips?"
    train = [
        {"question": long.format("May"), "answer": "72"},
        {"question": "Two?", "answer": "2"},
        {"question": "Two?", "answer": "2"},
    ]
    test = [{"question": long.format("June"), "answer": "see figure"}, {"question": "TWO ?", "answer": "2"}]
    paths = rows(tmp_path / "a.jsonl", *train), rows(tmp_path / "b.jsonl", *test)
    said = findings(load_task(DataSettings(path=paths[0], eval=paths[1], overlap="warn"), 0))
    text = "\n".join(said).replace(f"{tmp_path}/", "")
    assert said[0] == "task jsonl: 3 training prompts, 2 held-out prompts"
    assert "repeated training questions: 1" in said
    assert "overlap: 1 exact, 1 near (similarity 0.7 and more) of 2 held-out questions" in text
    assert "exact: a.jsonl line 2 = b.jsonl line 2" in text
    assert "a.jsonl line 1 ~ b.jsonl line 1" in text
    assert "answers: 4 of 5 can be judged by value\n  not: 'see figure'" in text


def test_findings_of_written_prompts():
    said = findings(load_task(DataSettings(task="word_problems", options={"size": 50, "held_out_size": 20}), 0))
    assert "overlap: 0 held-out questions are also training questions" in said
    assert said[-1] == "answers: 70 of 70 can be judged by value"
