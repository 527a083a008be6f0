"""The release as a state machine: every path, against the words of its documentation; a random walk that can never leave the invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from policyloop.errors import BadInput, Conflict, No
from policyloop.gateway import ApprovalSettings, ReleaseSettings
from policyloop.gateway.release import ACTIVE, Move, Routing, Seen, approve, back, begin, frozen, routing, step, tick
from policyloop.gateway.verdict import Verdict
from policyloop.store.log import After

RULES = ReleaseSettings(steps=(0.1, 0.5), step_min_s=0, warming_s=60, step_s=100, watch_s=50, holdback=0.1)
PASS, FAIL, OPEN = Verdict("pass"), Verdict("fail"), Verdict("inconclusive")
WARM = Seen(ready=1, healthy=1)


def begun(rules: ReleaseSettings = RULES, after: After | None = None) -> After:
    return begin(after or After(aliases={"stable": 1}), 2, rules, 0.0, by="ann", id="r").after


def walk(after: After, *seen: Seen, rules: ReleaseSettings = RULES, now: float = 1.0) -> tuple[After, list[str]]:
    types = []
    for one in seen:
        move = tick(after, one, rules, now)
        if move is not None:
            after, types = move.after, [*types, move.type]
    return after, types


def test_the_way_to_the_end() -> None:
    passed = replace(WARM, verdict=PASS)
    after, types = walk(begun(), WARM, WARM, passed, passed, WARM)
    assert types == ["warming", "canary_step", "canary_step", "promoted", "watching"]
    assert after.aliases == {"stable": 2, "previous": 1} and after.failures == 0
    after, types = walk(after, WARM, now=52.0)
    assert types == ["released"] and after.release["state"] == "idle" and routing(after) == Routing(2)


def test_shares_follow_the_steps_and_the_rest_is_held_back() -> None:
    passed, seen = replace(WARM, verdict=PASS), []
    after = begun()
    for _ in range(5):
        move = tick(after, passed, RULES, 1.0)
        assert move is not None
        after = move.after
        where = routing(after)
        seen.append((where.state, where.main, where.other, where.share, where.stratum))
    assert seen == [
        ("warming", 1, 2, 0, 0),
        ("canary", 1, 2, 0.1, 1),
        ("canary", 1, 2, 0.5, 2),
        ("promoted", 2, 1, 0.1, 3),
        ("watching", 2, 1, 0.1, 3),
    ]


def test_shadow_comes_before_the_canary_and_blue_green_has_none() -> None:
    rules = replace(RULES, shadow_share=0.3)
    after, types = walk(begun(rules), WARM, WARM, rules=rules)
    assert types == ["warming", "shadow"] and routing(after).shadow == 0.3 and routing(after).share == 0
    assert walk(after, replace(WARM, shadow=PASS), rules=rules)[1] == ["canary_step"]
    assert walk(after, replace(WARM, shadow=FAIL), rules=rules)[1] == ["rolled_back"]
    blue = replace(RULES, mode="blue_green", holdback=0.0)
    after, types = walk(begun(blue), WARM, WARM, rules=blue)
    assert types == ["warming", "promoted"] and routing(after) == Routing(2, 1, 0.0, 0.0, "r", 0, "promoted")


def test_no_data_is_inconclusive_and_past_the_deadline_it_goes_back() -> None:
    after, _ = walk(begun(), WARM, WARM)
    assert tick(after, replace(WARM, verdict=OPEN), RULES, 100.9) is None
    move = tick(after, replace(WARM, verdict=OPEN), RULES, 101.0)
    assert move is not None and move.type == "rolled_back" and "undecided" in move.reason and "no data" in move.reason
    assert move.after.aliases == {"stable": 1} and move.after.quarantined == (2,) and move.after.failures == 1
    assert routing(move.after) == Routing(1)


@pytest.mark.parametrize(
    ("seen", "now", "words"),
    [(Seen(broken="out of memory"), 1.0, "out of memory"), (Seen(), 61.0, "not ready within 60 s")],
)
def test_a_candidate_that_cannot_be_loaded(seen: Seen, now: float, words: str) -> None:
    after, _ = walk(begun(), WARM)
    move = tick(after, seen, RULES, now)
    assert move is not None and move.type == "rolled_back" and words in move.reason


def test_a_regression_seen_while_watching_goes_back_in_one_event() -> None:
    passed = replace(WARM, verdict=PASS)
    after, _ = walk(begun(after=After(aliases={"stable": 1, "previous": 7})), WARM, WARM, passed, passed, WARM)
    assert after.aliases == {"stable": 2, "previous": 1}
    move = tick(after, replace(WARM, verdict=FAIL), RULES, 2.0)
    assert move is not None and move.after.aliases == {"stable": 1, "previous": 7} and move.after.quarantined == (2,)


def test_without_backends_it_goes_back() -> None:
    after, _ = walk(begun(), WARM, WARM)
    move = tick(after, Seen(), RULES, 1.0)
    assert move is not None and move.type == "rolled_back" and "no healthy backend" in move.reason


def test_a_pointer_moved_by_hand_takes_effect_at_once_and_ends_the_release() -> None:
    after, _ = walk(begun(), WARM, WARM)
    moved = replace(after, aliases={**after.aliases, "stable": 3})
    assert routing(moved) == Routing(3)
    move = tick(moved, WARM, RULES, 1.0)
    assert move is not None and move.type == "cancelled" and move.after.aliases == {"stable": 3} and move.after.failures == 0


def test_five_failures_in_a_row_freeze_and_a_success_forgets_them() -> None:
    after = After(aliases={"stable": 1})
    for candidate in range(2, 7):
        assert not frozen(after, RULES)
        staged = begin(after, candidate, RULES, 0.0, by="ann", id="r").after
        after = back(staged, "bad").after
    assert (
        after.failures == 5 and frozen(after, RULES) and after.quarantined == (2, 3, 4, 5, 6) and after.aliases == {"stable": 1}
    )
    with pytest.raises(Conflict, match="5 updates in a row failed"):
        begin(after, 7, RULES, 0.0, by="ann", id="r")
    forced = begin(after, 7, RULES, 0.0, by="ann", id="r", force=True).after
    passed = replace(WARM, verdict=PASS)
    done, _ = walk(forced, WARM, WARM, passed, passed, WARM)
    assert done.failures == 5  # not proven yet
    assert walk(done, WARM, now=99.0)[0].failures == 0


def test_what_may_not_begin() -> None:
    with pytest.raises(No, match="quarantined"):
        begun(after=After(aliases={"stable": 1}, quarantined=(2,)))
    with pytest.raises(BadInput, match="stable already"):
        begun(after=After(aliases={"stable": 2}))
    with pytest.raises(Conflict, match="is staged"):
        begun(after=begun())


def test_approval_waits_for_different_keys_of_the_role() -> None:
    rules = replace(RULES, steps=(0.5,), approval=ApprovalSettings(role="approve", n=2, within_s=10))
    passed = replace(WARM, verdict=PASS)
    after, types = walk(begun(rules), WARM, WARM, passed, rules=rules)
    assert types[-1] == "approval_asked" and after.release["state"] == "canary"
    with pytest.raises(No, match="role"):
        approve(after, rules, "eve", "infer")
    after = approve(after, rules, "ann", "approve").after
    with pytest.raises(No, match="already"):
        approve(after, rules, "ann", "approve")
    assert tick(after, passed, rules, 2.0) is None
    both = approve(after, rules, "bob", "approve").after
    assert walk(both, passed, rules=rules)[1] == ["promoted"]
    late = tick(after, passed, rules, 11.0)
    assert late is not None and late.type == "rolled_back" and late.after.quarantined == () and late.after.failures == 0


def test_a_person_may_promote_a_warm_candidate_only() -> None:
    with pytest.raises(Conflict, match="staged"):
        step(begun(), RULES, 0.0, "now")
    after, _ = walk(begun(), WARM, WARM)
    assert step(after, RULES, 0.0, "now").after.aliases["stable"] == 2


def test_the_first_version_has_nothing_to_be_compared_with() -> None:
    after, types = walk(begun(after=After()), WARM, WARM)
    assert types == ["warming", "promoted"] and after.aliases == {"stable": 2}


SEEN = st.builds(
    Seen,
    ready=st.integers(0, 2),
    healthy=st.integers(0, 2),
    broken=st.sampled_from(["", "", "bad file"]),
    verdict=st.sampled_from([PASS, FAIL, OPEN]),
    shadow=st.sampled_from([PASS, FAIL, OPEN]),
)


@examples(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(SEEN, st.floats(0, 80)), max_size=12),
    st.booleans(),
    st.floats(0, 0.5),
    st.sampled_from(["canary", "blue_green"]),
)
def test_nothing_half_released_whatever_is_seen(
    steps: list[tuple[Seen, float]], shadow: bool, holdback: float, mode: Any
) -> None:
    """At every event: one stable version that was released or was there before; a quarantined version gets nothing; idle = no share."""
    rules, now = replace(RULES, shadow_share=0.2 if shadow else 0.0, holdback=holdback, mode=mode), 0.0
    after = begun(rules)
    for seen, later in steps:
        now += later
        move: Move | None = tick(after, seen, rules, now)
        if move is None:
            continue
        after = After.of(
            {**{f: getattr(move.after, f) for f in ("aliases", "release", "failures", "quarantined", "expiring", "last")}}
        )
        where = routing(after)
        assert where.main in (1, 2) and where.main not in after.quarantined
        assert where.other not in after.quarantined
        assert 0 <= where.share <= 0.5 and (where.state in ACTIVE or where == Routing(where.main))
        assert (after.aliases["stable"] == 2) == (
            where.state in ("promoted", "watching") or after.release.get("outcome") == "released"
        )
