"""The queue: fair between clients, and nobody waits for ever."""

from __future__ import annotations

import numpy as np

from policyloop.engine import Request
from policyloop.engine.rows import Row
from policyloop.engine.server import AGEING, Ranks
from policyloop.types import SamplingParams


def row(client: str, work: int = 100) -> list[Row]:
    request = Request("q", tuple(range(work // 2)), SamplingParams(max_new_tokens=work // 2), client=client)
    return [Row(request, 0, np.uint64(0), work // 2, frozenset())]


def order(ranks: Ranks, *asked: tuple[str, float]) -> list[str]:
    waiting = []
    for client, at in asked:
        rows = row(client)
        ranks.place(rows, at)
        waiting.append(rows[0])
    return [r.request.client for r in sorted(waiting, key=lambda r: r.rank)]


def test_a_client_with_one_request_does_not_wait_behind_one_with_many() -> None:
    assert order(Ranks(), *[("many", 0.0)] * 5, ("few", 0.0), ("other", 0.0)) == ["many", "few", "other", *["many"] * 4]


def test_one_client_alone_is_served_in_order_of_arrival() -> None:
    ranks = Ranks()
    starts = []
    for at in range(4):
        rows = row("a")
        ranks.place(rows, float(at))
        starts.append(rows[0].rank)
    assert starts == sorted(starts)


def test_waiting_counts_so_that_new_clients_cannot_keep_an_old_one_out() -> None:
    ranks = Ranks()
    seconds = 1000 / AGEING  # what ten requests ahead of oneself are worth
    late = [(f"new{i}", seconds + 1) for i in range(3)]
    assert order(ranks, *[("old", 0.0)] * 10, *late)[:10] == ["old"] * 10
    soon = [(f"new{i}", 0.0) for i in range(3)]
    assert order(Ranks(), *[("old", 0.0)] * 10, *soon)[-1] == "old"


def test_who_was_away_does_not_save_up_turns() -> None:
    ranks = Ranks()
    order(ranks, *[("busy", 0.0)] * 10)
    last = row("busy")
    ranks.place(last, 0.0)
    ranks.admitted(last)  # the busy one's work is being done
    assert order(ranks, ("busy", 0.0), ("back", 0.0), ("back", 0.0))[:1] == ["back"]
    fresh = row("back2")
    ranks.place(fresh, 0.0)
    assert fresh[0].start == last[0].start
