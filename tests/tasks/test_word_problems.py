"""One-step word problems: what is held out, and that every text asks what its key says."""

import re
from collections import Counter

import pytest

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.word_problems import TEMPLATES, all_keys, load
from policyloop.types import Completion


@pytest.fixture(scope="module")
def task():
    return load_task(DataSettings(task="word_problems"), 0)


def test_keys_of_numbers_up_to_ten():
    counts = Counter(k.operator for k in all_keys(10, "+-*/"))
    # 9 numbers: 45 unordered pairs, 36 ordered pairs with a > b, 81 quotients.
    assert counts == {"+": 45, "*": 45, "-": 36, "/": 81}
    assert len(all_keys(10, "+")) == 45


def test_no_held_out_sum_was_ever_trained_on(task):
    train = {p.meta["cluster"] for p in task.train()}
    for seed in range(3):
        held = Counter(p.meta["cluster"] for p in task.held_out(seed))
        assert not train & held.keys()
        assert max(held.values()) - min(held.values()) <= 1
    assert len(train) + len(held) == 207
    assert all(sum(k[0] == op for k in held) >= 8 for op in "+-*/")


def test_seeds_give_fresh_texts_over_the_same_border(task):
    texts = [{p.id for p in task.held_out(seed)} for seed in (1, 2)]
    assert len(texts[0] & texts[1]) < 0.1 * len(texts[0])
    assert [p.id for p in task.held_out(1)] == [p.id for p in load(DataSettings(), 99).held_out(1)]
    assert [p.id for p in task.train()] != [p.id for p in load(DataSettings(), 99).train()]


def test_every_text_holds_its_numbers_and_its_answer(task):
    for prompt in task.train() + task.held_out(5):
        operator, a, b = re.fullmatch(r"(.):(\d+),(\d+)", prompt.meta["cluster"]).groups()
        question = prompt.messages[0].content.removesuffix("\nReply with only the final answer.")
        assert sorted(re.findall(r"\d+", question)) == sorted([a, b])
        if operator in "-/":
            assert re.findall(r"\d+", question) == [a, b]
        expected = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / int(b)}[operator]
        assert prompt.target == str(int(expected)) and expected == int(expected) > 0
        assert question.endswith("?") and not re.search(r"[{}]", question)


def test_wordings_are_many_and_all_used(task):
    assert all(len(set(texts)) >= 6 for texts in TEMPLATES.values())
    assert {p.meta["template"] for p in task.train()} == {
        f"{op}{i}" for op, texts in TEMPLATES.items() for i in range(len(texts))
    }
    assert len({p.id for p in task.train()}) > 1700


def test_correct_asks_for_a_stop(task):
    prompt = task.train()[0]
    done = Completion((1,), (2,), (-0.1,), "stop", "run#0", f"The answer is {prompt.target}.")
    cut = Completion((1,), (2,), (-0.1,), "length", "run#0", f"The answer is {prompt.target}.")
    assert (task.grade(prompt, done), task.grade(prompt, cut)) == (True, False)
    assert load(DataSettings(correct_needs_stop=False), 0).grade(prompt, cut) is True


def test_options():
    task = load(DataSettings(options={"max_number": 5, "operators": "*", "size": 7, "held_out_size": 9}, answer_format=""), 0)
    assert (len(task.train()), len(task.held_out())) == (7, 9)
    assert {p.meta["operator"] for p in task.train()} == {"*"}
    assert task.train()[0].messages[0].content.endswith("?")
    for options in ({"max_number": 2}, {"operators": "%"}, {"operators": ""}, {"size": 0}):
        with pytest.raises(BadInput, match=r"data\.options"):
            load(DataSettings(options=options), 0)
    with pytest.raises(BadInput, match="leave one side empty"):
        load(DataSettings(options={"max_number": 3}, held_out_share=0.0), 0)
