"""Rewards over HTTP, against a real server: batches, retry, time-out, fallback."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from scoring import group, scorer, values
from web import serving

from policyloop.errors import BadInput
from policyloop.rewards import RemoteReward, RewardsSettings


def settings(url: str, **fields: Any) -> RewardsSettings:
    return RewardsSettings(terms=(RemoteReward(url=url, **fields),))


def test_rows_go_out_in_batches_and_scores_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def reply(path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        seen.append((path, headers.get("Authorization"), body["rows"]))
        return 200, {"scores": [float(len(r["completion"])) if r["completion"] else None for r in body["rows"]]}

    monkeypatch.setenv("REWARD_TOKEN", "s3cret")
    groups = [group(["a", "bb", "ccc"]), group(["dddd", ""])]
    with serving(reply) as url:
        found, _ = scorer(settings(f"{url}/score", batch=2, token_env="REWARD_TOKEN"), groups).score(groups)
    assert values(found) == [1.0, 2.0, 3.0, 4.0, None]
    assert sorted(len(rows) for _, _, rows in seen) == [1, 2, 2]
    assert {(path, token) for path, token, _ in seen} == {("/score", "Bearer s3cret")}
    assert seen[0][2][0].keys() == {"prompt", "completion", "target"} and {r["target"] for _, _, rows in seen for r in rows} == {
        "5"
    }


def test_a_busy_server_is_asked_once_more() -> None:
    asked: list[int] = []

    def reply(path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        asked.append(1)
        return (503, {}) if len(asked) == 1 else (200, {"scores": [1.0]})

    groups = [group(["a"])]
    with serving(reply) as url:
        assert values(scorer(settings(url), groups).score(groups)[0]) == [1.0]
    assert len(asked) == 2


def test_a_hanging_server_ends_in_unscored_rows_or_the_fallback() -> None:
    never = threading.Event()

    def reply(path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        never.wait(20)
        return 200, {"scores": [1.0]}

    groups = [group(["a"])]
    with serving(reply) as url:
        found, counters = scorer(settings(url, timeout_s=0.3), groups).score(groups)
        assert values(found) == [None] and counters["reward/late/remote"] + counters["reward/failed/remote"] == 1
        found, counters = scorer(settings(url, timeout_s=0.3, fallback=-1.0), groups).score(groups)
        assert values(found) == [-1.0] and counters["reward/late/remote"] + counters["reward/failed/remote"] == 1
        never.set()


@pytest.mark.parametrize("answer", [{"scores": [1.0, 2.0]}, {"oops": 1}, [1.0]], ids=["too many", "no scores", "a list"])
def test_replies_of_another_shape_score_nothing(answer: Any) -> None:
    groups = [group(["a"])]
    with serving(lambda path, headers, body: (200, answer)) as url:
        found, counters = scorer(settings(url), groups).score(groups)
    assert values(found) == [None] and counters["reward/failed/remote"] == 1


def test_nobody_listens_and_missing_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda path, headers, body: (200, {})) as url:
        gone = url
    groups = [group(["a"])]
    assert values(scorer(settings(gone), groups).score(groups)[0]) == [None]
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with pytest.raises(BadInput, match="the environment has no NO_SUCH_TOKEN"):
        scorer(settings(gone, token_env="NO_SUCH_TOKEN"), groups)
    with pytest.raises(BadInput, match="http://"):
        settings("ftp://x")
