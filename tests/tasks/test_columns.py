"""Column names of real data sets, message lists of every kind (case G08)."""

import pytest

from policyloop.errors import BadInput
from policyloop.tasks.columns import choose, names_of
from policyloop.tasks.reading import NumberText, Record
from policyloop.types import Message


@pytest.mark.parametrize(
    ("names", "prompt", "answer"),
    [
        (["question", "answer"], "question", "answer"),  # GSM8K
        (["problem", "solution", "answer", "subject", "level"], "problem", "answer"),  # MATH-500
        (["problem", "solution", "messages"], "problem", "solution"),  # NuminaMath
        (["instruction", "input", "output"], "instruction", "output"),  # Alpaca
        (["data_source", "prompt", "ability", "reward_model", "reward_model.style", "reward_model.ground_truth"], "prompt",
         "reward_model.ground_truth"),  # verl
        (["query", "response"], "query", "response"),  # ms-swift
        (["Question", "Final Answer"], "Question", "Final Answer"),
        (["prompt", "completion"], "prompt", "completion"),
        (["prompt"], "prompt", None),
    ],
)  # fmt: skip
def test_known_data_sets(names, prompt, answer):
    chosen = choose(names, {})
    assert (chosen.roles["prompt"], chosen.roles.get("answer")) == (prompt, answer)


def test_what_was_chosen_is_said():
    chosen = choose(["problem", "solution", "answer", "level", "id"], {})
    assert chosen.said() == (
        "columns: prompt = problem, answer = answer, id = id; kept beside them: solution, level, id; "
        "answer could also be solution (data.columns)"
    )


def test_given_columns_win():
    names = ["frage", "loesung", "question", "id"]
    chosen = choose(names, {"prompt": "frage", "answer": "loesung", "id": None})
    assert chosen.roles == {"prompt": "frage", "answer": "loesung"}
    assert chosen.others == ("question", "id")
    record = Record({"frage": "a", "loesung": NumberText("1.50"), "question": NumberText("2"), "id": "x"}, "f line 1")
    assert (chosen.question(record), chosen.scalar(record, "answer"), chosen.meta(record)) == (
        "a",
        "1.50",
        {"question": 2, "id": "x"},
    )


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (["frage", "loesung"], {}, r"no column is known as the prompt.*one of frage, loesung"),
        (["question"], {"prompt": "qestion"}, r"no column 'qestion'; did you mean question\?"),
        (["question"], {"promt": "question"}, r"role 'promt': allowed is prompt, answer"),
    ],
)
def test_wrong_columns_are_named(names, given, said):
    with pytest.raises(BadInput, match=said):
        choose(names, given)


def question(value, name="prompt"):
    record = Record({name: value}, "f line 3")
    return choose(names_of([record]), {}).question(record)


def test_messages_of_both_spellings():
    user = (Message("user", "a"),)
    assert question([{"role": "user", "content": "a"}]) == user
    assert question([{"from": "human", "value": "a"}], "conversations") == user
    assert question([{"role": "user", "content": [{"type": "text", "text": "a"}]}]) == user
    assert question(NumberText("12")) == "12"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], r"f line 3: the prompt \(prompt\) is an empty list"),
        ("", r"f line 3: the prompt \(prompt\) is empty"),
        (" \n", r"is empty"),
        (None, r"is missing"),
        (["a"], r"message 1 of prompt is a text"),
        ([{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}], r"message 2 of prompt has the role 'robot'"),
        ([{"role": "user"}], r"has no text content"),
        ([{"role": "user", "content": [{"type": "image"}]}], r"has no text content"),
        ({"text": "a"}, r"the prompt \(prompt\) is a object"),
    ],
)
def test_prompts_that_are_none(value, said):
    with pytest.raises(BadInput, match=said):
        question(value)


def test_alpaca_input_follows_the_instruction():
    record = Record({"instruction": "Add.", "input": "2 and 3", "output": "5"}, "f line 1")
    chosen = choose(names_of([record]), {})
    assert chosen.question(record) == "Add.\n\n2 and 3"
    assert chosen.others == ()
