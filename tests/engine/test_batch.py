"""Who runs when: requests in order, a budget of rows and positions, groups cut to fit."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from policyloop.engine import Request
from policyloop.engine.batch import Budget, cost
from policyloop.engine.rows import Row
from policyloop.types import SamplingParams


def rows(prompt: int, limit: int, n: int) -> list[Row]:
    request = Request("u", (1,) * prompt, SamplingParams(limit, n=n))
    return [Row(request, s, np.uint64(0), limit, frozenset()) for s in range(n)]


def test_a_prompt_counts_once_and_every_answer_at_its_limit() -> None:
    assert cost(rows(10, 7, 4)) == 10 + 4 * 7


@pytest.mark.parametrize(
    ("budget", "request_", "want"),
    [
        (Budget(8, 1000), (10, 10, 20), [8, 8, 4]),
        (Budget(64, 60), (10, 10, 12), [5, 5, 2]),  # (60 - 10) / 10 rows at once
        (Budget(64, 60), (10, 10, 5), [5]),
        (Budget(64, 5), (10, 10, 3), [1, 1, 1]),  # a single row always fits
    ],
)
def test_groups_are_cut_to_fit(budget: Budget, request_: tuple[int, int, int], want: list[int]) -> None:
    group = rows(*request_)
    chunks = list(budget.chunks(group))
    assert [len(c) for c in chunks] == want
    assert [r.sample for c in chunks for r in c] == list(range(request_[2]))


def test_requests_enter_in_order_while_they_fit() -> None:
    waiting = deque([rows(10, 10, 2), rows(10, 10, 2), rows(1, 1, 1)])
    assert [cost(t) for t in Budget(64, 60).take(waiting, [], 0)] == [30, 30]  # the third would make 62
    assert len(waiting) == 1
    assert [len(t) for t in Budget(3, 1000).take(deque([rows(1, 1, 2), rows(1, 1, 1), rows(1, 1, 1)]), [], 0)] == [2, 1]


def test_nobody_overtakes() -> None:
    """A small request does not slip past a large one that waits."""
    waiting = deque([rows(50, 10, 1), rows(1, 1, 1)])
    assert Budget(64, 70).take(waiting, rows(5, 10, 1), 15) == []
    assert len(waiting) == 2
    assert [cost(t) for t in Budget(64, 77).take(waiting, rows(5, 10, 1), 15)] == [60, 2]


def test_the_first_one_fits_where_nothing_runs() -> None:
    waiting = deque([rows(500, 10, 1)])
    assert len(Budget(1, 60).take(waiting, [], 0)) == 1
