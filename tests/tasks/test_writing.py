"""Any accepted file becomes policyloop's JSON Lines and reads back as the same prompts."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyloop.errors import BadInput, Conflict
from policyloop.tasks.items import items_of
from policyloop.tasks.reading import Record, read
from policyloop.tasks.writing import lines, write_items
from policyloop.types import Message

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(str.strip)
CHATS = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS}), min_size=1, max_size=3)
ROWS = st.fixed_dictionaries(
    {"question": TEXTS, "gold": SCALARS}, optional={"level": SCALARS, "tags": st.lists(SCALARS, max_size=2)}
)
CHAT_ROWS = st.fixed_dictionaries({"messages": CHATS, "answer": SCALARS}, optional={"système": SCALARS})


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5) | st.lists(CHAT_ROWS, min_size=1, max_size=5))
def test_round_trip(tmp_path_factory, rows):
    items, _ = items_of([Record(row, f"row {i}") for i, row in enumerate(rows)], {})
    path = tmp_path_factory.mktemp("out") / "out.jsonl"
    write_items(items, str(path))
    back, chosen = items_of(list(read(str(path))), {})
    assert [dataclasses.replace(i, place="") for i in back] == [dataclasses.replace(i, place="") for i in items]
    assert (chosen.roles["prompt"], chosen.roles["answer"]) == ("prompt", "answer")
    assert path.read_text(encoding="utf-8").splitlines() == path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def test_the_form_of_a_row():
    record = Record({"question": "a\u2028b", "answer": 7, "system": "S", "level": 1.0, "id": "x"}, "f line 1")
    (line,) = lines(items_of([record], {})[0])
    assert line == b'{"prompt": "a\\u2028b", "answer": "7", "system": "S", "level": 1.0, "id": "x"}\n'
    chat = Record({"messages": [{"from": "human", "value": "a"}]}, "f line 1")
    (line,) = lines(items_of([chat], {})[0])
    assert json.loads(line) == {"prompt": [{"role": "user", "content": "a"}], "answer": None}
    assert items_of([chat], {})[0][0].question == (Message("user", "a"),)


def test_files_are_not_overwritten_and_names_not_mixed(tmp_path):
    items, _ = items_of([Record({"question": "a", "answer": "1"}, "f line 1")], {})
    out = str(tmp_path / "out.jsonl")
    write_items(items, out)
    with pytest.raises(Conflict, match="exists already"):
        write_items(items, out)
    write_items(items, out, force=True)
    with pytest.raises(BadInput, match="no name for JSON Lines"):
        write_items(items, str(tmp_path / "out.csv"))
    twice, _ = items_of([Record({"question": "a", "prompt": "b", "answer": "1"}, "f line 1")], {"prompt": "question"})
    with pytest.raises(BadInput, match="f line 1: the column prompt would stand twice"):
        write_items(twice, str(tmp_path / "twice.jsonl"))
    same_ids = [Record({"question": q, "answer": "1", "id": "x"}, f"f line {n}") for n, q in enumerate("ab")]
    with pytest.raises(BadInput, match="the id 'x' is also in"):
        write_items(items_of(same_ids, {"id": None})[0], str(tmp_path / "ids.jsonl"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl"]
