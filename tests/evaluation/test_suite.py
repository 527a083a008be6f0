"""Frozen suites stay as they are, and items that were trained on are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyloop.errors import BadInput, Conflict
from policyloop.evaluation.suite import Suite, contamination, freeze
from policyloop.tasks import DataSettings
from policyloop.types import Message, Prompt

DATA = DataSettings(task="tiny_arithmetic")


def ask(text: str, target: str = "5") -> Prompt:
    return Prompt.make("t", [Message("system", "be brief"), Message("user", text)], target, {"level": 2})


def test_a_suite_comes_back_as_it_was_frozen(tmp_path: Path) -> None:
    prompts = [ask("2+3?"), ask("小明 has 4 + 1?"), Prompt.make("t", "plain text", None)]
    made = freeze(tmp_path / "s.jsonl", "s", prompts, DATA)
    assert made == Suite.load(tmp_path / "s.jsonl") and list(made.prompts) == prompts and made.data == DATA
    with pytest.raises(Conflict, match="exists already"):
        freeze(tmp_path / "s.jsonl", "s", prompts, DATA)
    with pytest.raises(BadInput, match="2 prompts with 1 ids"):
        freeze(tmp_path / "t.jsonl", "t", [ask("x")] * 2, DATA)


@pytest.mark.parametrize("change", [lambda ls: ls[:-1], lambda ls: [*ls, ls[-1]], lambda ls: [ls[0], ls[2], ls[1]]])
def test_a_suite_that_moved_is_refused(change, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "s.jsonl"
    freeze(file, "s", [ask("2+3?"), ask("1+4?")], DATA)
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")
    with pytest.raises(Conflict, match="changed after it was frozen"):
        Suite.load(file)
    file.write_text("{}\n")
    with pytest.raises(BadInput, match="no suite"):
        Suite.load(file)


def test_copies_and_rewordings_are_found_and_neighbours_are_not() -> None:
    train = [
        ask("Tom has 12 apples in his basket and eats 7 of them on the way home. How many are left?"),
        ask("Lisa reads 30 pages of her book every day for a week. How many pages has she read?", "210"),
    ]
    items = [
        ask("tom has 12 apples in his basket and eats 7 of them on the way home.  How many are left?"),  # spaces and case
        ask("Tom has 12 apples in his basket and eats 7 of them on the way home. How many remain?"),  # reworded
        ask("Tom has 13 apples in his basket and eats 7 of them on the way home. How many are left?", "6"),  # another number
        ask("A train leaves at 9 and arrives at 14. How long does it take?"),
    ]
    found = contamination(items, train)
    assert found.exact == (items[0].id,) and found.near == (items[1].id,) and found.n == 4
    assert contamination(train, train).exact == tuple(p.id for p in train)
    assert not contamination(items[2:], train).ids
