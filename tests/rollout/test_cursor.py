"""The walk over prompts: once per epoch, the same after a resume, loud when there is nothing to walk over."""

from __future__ import annotations

import pytest

from policyloop.errors import BadInput
from policyloop.rollout.cursor import Cursor
from policyloop.types import Prompt


def prompts(n: int) -> list[Prompt]:
    return [Prompt.make("t", f"q{i}") for i in range(n)]


def test_each_row_once_per_epoch_also_over_the_seam() -> None:
    """D09: 7 prompts, 3 a step: nothing is dropped, a step crosses into the next epoch."""
    cursor = Cursor(prompts(7), seed=3, per_step=3)
    drawn = [d for _ in range(7) for d in cursor.take(3)]
    for epoch in range(3):
        texts = [d.prompt.text for d in drawn[7 * epoch : 7 * epoch + 7]]
        assert sorted(texts) == [f"q{i}" for i in range(7)]
        assert {d.epoch for d in drawn[7 * epoch : 7 * epoch + 7]} == {epoch}
    assert [d.prompt.id for d in drawn[:7]] != [d.prompt.id for d in drawn[7:14]]


@pytest.mark.parametrize("stop", [0, 1, 20, 63, 64, 65, 100, 128])
def test_resume_at_any_point_goes_on_as_if_nothing_had_happened(stop: int) -> None:
    """F04: also in epoch 2, also twice."""
    whole = Cursor(prompts(64), seed=0, per_step=1)
    expected = [d.uid for d in whole.take(160)]
    first = Cursor(prompts(64), seed=0, per_step=1)
    got = [d.uid for d in first.take(stop)]
    for until in (stop + 7, 160):
        again = Cursor(prompts(64), seed=0, per_step=1)
        again.position = len(got)
        got += [d.uid for d in again.take(until - len(got))]
    assert got == expected


def test_equal_prompts_stay_separate_groups() -> None:
    """G11: prompts a, a, b give three uids."""
    twice = [Prompt.make("t", "a"), Prompt.make("t", "a"), Prompt.make("t", "b")]
    assert len({d.uid for d in Cursor(twice, seed=0, per_step=3).take(3)}) == 3


def test_fewer_prompts_than_a_step_needs_is_an_error() -> None:
    with pytest.raises(BadInput, match="2 training prompts make 0 batches of 3"):
        Cursor(prompts(2), seed=0, per_step=3)


def test_peek_does_not_move() -> None:
    cursor = Cursor(prompts(5), seed=1, per_step=2)
    assert [d.uid for d in cursor.peek(4)] == [d.uid for d in cursor.take(4)]
