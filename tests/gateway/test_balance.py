"""Balancing, sessions, the circuit breaker, ejection: by counting."""

from __future__ import annotations

import collections
import random
from dataclasses import dataclass

import pytest

from policyloop.errors import BadInput
from policyloop.gateway import BackendSettings, HealthSettings, MemorySettings
from policyloop.gateway.backends import Backend, eject_outliers
from policyloop.gateway.balance import Chooser, affine, wants_candidate
from policyloop.gateway.fit import Size, need, way_back


@dataclass
class Server:
    name: str
    running: int = 0


THREE = [Server("a"), Server("b"), Server("c")]


def test_round_robin_goes_round() -> None:
    chooser = Chooser("round_robin")
    assert [chooser.choose(THREE, None).name for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_least_connections_takes_the_emptiest_and_shares_ties() -> None:
    chooser = Chooser("least_connections")
    assert chooser.choose([Server("a", 3), Server("b", 1), Server("c", 2)], None).name == "b"
    assert collections.Counter(chooser.choose(THREE, None).name for _ in range(9)) == {"a": 3, "b": 3, "c": 3}


def test_power_of_two_never_takes_the_fullest_of_its_two() -> None:
    chooser = Chooser("power_of_two", random.Random(0))
    busy = [Server("a", 9), Server("b", 1), Server("c", 1)]
    counts = collections.Counter(chooser.choose(busy, None).name for _ in range(3000))
    assert counts["a"] == 0 and 1300 < counts["b"] < 1700


def test_a_session_stays_and_only_the_sessions_of_a_lost_backend_move() -> None:
    sessions = [f"s{i}" for i in range(300)]
    before = {s: affine(THREE, s).name for s in sessions}
    after = {s: affine(THREE[:2], s).name for s in sessions}
    assert {s for s in sessions if before[s] != after[s]} == {s for s in sessions if before[s] == "c"}
    assert min(collections.Counter(before.values()).values()) > 70


def test_a_growing_share_only_moves_sessions_to_the_candidate() -> None:
    at = [{s for s in range(4000) if wants_candidate("r1", str(s), share)} for share in (0.05, 0.25, 0.5)]
    assert at[0] < at[1] < at[2] and abs(len(at[1]) / 4000 - 0.25) < 0.03
    assert {s for s in range(4000) if wants_candidate("r2", str(s), 0.05)} != at[0]  # another release, other people


def backend(**health: float) -> Backend:
    return Backend(BackendSettings(url="http://x"), HealthSettings(**health))  # type: ignore[arg-type]


def ask(b: Backend, ok: bool | None, now: float) -> None:
    b.began(now)
    b.ended(ok, now)


def test_checks_in_a_row() -> None:
    b = backend(up_after=2, down_after=2)
    b.checked(True)
    assert not b.up
    b.checked(True)
    assert b.up
    b.checked(False, "timeout")
    assert b.up
    b.checked(False, "timeout")
    assert not b.up and b.why_down == "timeout"


def test_the_circuit_opens_lets_one_try_and_closes() -> None:
    b = backend(breaker_failures=3, breaker_open_s=5)
    b.checked(True)
    for _ in range(3):
        assert b.usable(0.0)
        ask(b, False, 0.0)
    assert b.circuit(4.9) == "open" and not b.usable(4.9)
    assert b.circuit(5.0) == "half_open" and b.usable(5.0)
    b.began(5.0)
    assert not b.usable(5.0)  # one trial at a time
    b.ended(False, 6.0)
    assert not b.usable(10.9) and b.usable(11.0)
    b.began(11.0)
    b.ended(True, 11.1)
    assert b.circuit(11.1) == "closed"


def test_a_client_that_leaves_says_nothing_of_the_backend() -> None:
    b = backend(breaker_failures=1)
    b.checked(True)
    ask(b, None, 0.0)
    assert b.circuit(0.0) == "closed" and b.running == 0


def test_outliers_leave_but_never_more_than_half() -> None:
    arm = [backend(eject_window=4, breaker_failures=99) for _ in range(4)]
    for b, good in zip(arm, (0, 1, 0, 4), strict=True):
        b.checked(True)
        for i in range(4):
            ask(b, i < good, 0.0)
    assert eject_outliers(arm, 0.0) == [arm[0], arm[2]]
    assert [b.usable(1.0) for b in arm] == [False, True, False, True] and arm[0].usable(10.0)


GB = 10**9


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    memory = MemorySettings(capacity_bytes=12 * GB, kv_bytes=GB)
    with pytest.raises(BadInput, match=r"double: 18.0 GB = 8.0 GB \+ 8.0 GB \+ 1.0 GB \+ 1.0 GB do not fit into 12.0 GB"):
        need("double", Size(8 * GB), Size(8 * GB), memory)
    assert need("replace", Size(8 * GB), Size(9 * GB), memory) == "replace: 10.0 GB = 9.0 GB + 1.0 GB of 12.0 GB"
    one, other = Size(GB // 2, "b", 8 * GB), Size(GB // 2, "b", 8 * GB)
    assert need("adapter", one, other, memory).startswith("adapter: 10.0 GB = 8.0 GB + 0.5 GB + 0.5 GB + 1.0 GB")
    with pytest.raises(BadInput, match="no adapter"):
        need("adapter", one, Size(GB), memory)
    with pytest.raises(BadInput, match="stable stands on c, the candidate on b"):
        need("adapter", Size(GB, "c", GB), other, memory)
    assert "not set" in need("double", Size(8 * GB), Size(8 * GB), MemorySettings())


def test_the_way_back() -> None:
    assert way_back("double", 2, 9.0)["kind"] == "now"
    assert way_back("replace", 0, 9.0) == {"kind": "cold", "seconds": 9.0, "backends": 0}
    assert way_back("double", 0, None)["kind"] == "none"
