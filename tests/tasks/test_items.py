"""Items: ids, mixed kinds, conversations, the cut by hash (cases G08, G11)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyloop.errors import BadInput
from policyloop.tasks.items import Item, cut, items_of, shuffled
from policyloop.tasks.overlap import normalise
from policyloop.tasks.reading import NumberText, Record
from policyloop.types import Message


def records(*rows):
    return [Record(row, f"f line {n}") for n, row in enumerate(rows, 1)]


def test_duplicate_ids_name_both_lines():
    rows = records({"id": NumberText("1"), "q": "a"}, {"id": NumberText("2"), "q": "b"}, {"id": "1", "q": "c"})
    with pytest.raises(BadInput, match=r"f line 3: the id '1' is also in f line 1"):
        items_of(rows, {"prompt": "q"})
    assert len(items_of(rows, {"prompt": "q", "id": None})[0]) == 3


def test_the_first_odd_line_of_a_mixed_file_is_named():
    chat = [{"role": "user", "content": "a"}]
    with pytest.raises(BadInput, match=r"f line 3: the prompt is a message list: allowed is text, as in f line 1"):
        items_of(records({"prompt": "a"}, {"prompt": "b"}, {"prompt": chat}), {})
    with pytest.raises(BadInput, match=r"f line 2: the prompt is text: allowed is a message list"):
        items_of(records({"prompt": chat}, {"prompt": "b"}), {})


def test_all_faults_can_be_collected():
    faults = []
    rows = records({"prompt": "a", "answer": ["1"]}, {"prompt": "b", "answer": "1"}, {"prompt": "", "answer": "2"})
    items, _ = items_of(rows, {}, on_fault=faults.append)
    assert [i.question for i in items] == ["b"]
    assert [f.where.split(" or")[0] for f in faults] == ["f line 1", "f line 3"]
    assert "the answer (answer) is a list" in faults[0].given


def test_a_conversation_is_a_prompt_and_its_last_answer():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (item,), _ = items_of(records({"messages": chat}), {})
    assert (item.question, item.answer) == ((Message("user", "a"),), "b")
    with pytest.raises(BadInput, match="do not end with a question"):
        items_of(records({"messages": [{"role": "assistant", "content": "b"}]}), {})
    with pytest.raises(BadInput, match="do not end with a question"):
        items_of(records({"messages": [{"role": "system", "content": "b"}]}), {})


def item(text: str) -> Item:
    return Item(text, "1", "f line 1")


WORDS = st.sampled_from([f"{blank}question{blank} {n}{case}" for n in range(60) for blank in ("", " ") for case in "aA"])


@settings(max_examples=40)
@given(st.lists(WORDS, min_size=20, max_size=50).filter(lambda words: len({normalise(w) for w in words}) > 3), st.lists(WORDS))
def test_the_cut_keeps_equal_questions_together_and_survives_growth(first, more):
    train, held = cut([item(t) for t in first], 0.3)
    assert sorted(i.spoken for i in train + held) == sorted(first)
    assert not {normalise(i.spoken) for i in train} & {normalise(i.spoken) for i in held}
    if len({normalise(i.spoken) for i in held}) > 1:
        train_later, _ = cut([item(t) for t in first + more], 0.3)
        assert {i.spoken for i in held}.isdisjoint(i.spoken for i in train_later)


def test_the_cut_has_the_asked_size_and_never_an_empty_side():
    _, held = cut([item(f"question {n}") for n in range(2000)], 0.1)
    assert len(held) == pytest.approx(200, abs=4 * (2000 * 0.1 * 0.9) ** 0.5)
    assert len(cut([item("a"), item("b")], 0.01)[1]) == 1
    assert cut([item("a")], 0.0) == ([item("a")], [])
    with pytest.raises(BadInput, match="2 rows with 1 different questions leave none for training"):
        cut([item("a"), item("A ")], 0.1)


def test_shuffled_depends_on_seed_and_content_only():
    things = [f"t{n}" for n in range(50)]
    assert shuffled(things, 1, str) == shuffled(things[::-1], 1, str) != shuffled(things, 2, str)
    assert sorted(shuffled(things, 1, str)) == sorted(things)
