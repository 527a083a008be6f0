"""The judge against a real OpenAI-shaped server: both orders, flips, silence, agreement with labels."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scoring import group, scorer, values
from web import serving

from policyloop.errors import BadInput
from policyloop.rewards import JudgeSettings, RewardsSettings
from policyloop.rewards.judge import Agreement, agreement, settled, verdict_of
from policyloop.types import Prompt


def model(choose: Callable[[str, str], str], seen: list[Any] | None = None) -> Any:
    """A server whose model sees answers A and B and says what `choose` says."""

    def reply(path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        if seen is not None:
            seen.append((headers, body))
        said = body["messages"][1]["content"]
        a, b = (re.search(rf"=== Answer {n} ===\n(.*?)\n=== end of {n}", said, re.DOTALL)[1] for n in "AB")  # type: ignore[index]
        return 200, {"choices": [{"message": {"content": choose(a, b)}}]}

    return serving(reply)


def longer(a: str, b: str) -> str:
    return f"Both are fine.\n{'A' if len(a) > len(b) else 'B' if len(b) > len(a) else 'TIE'}"


def settings(url: str, **fields: Any) -> RewardsSettings:
    return RewardsSettings(terms=(JudgeSettings(url=f"{url}/v1", model="m", **fields),))


def test_a_ring_of_answers() -> None:
    """1, 2 and 3 letters: 1<2, 2<3, 3>1: nothing, half, all."""
    groups = [group(["a", "bb", "ccc"], None), group(["dd", "e"], "7", other=1)]
    with model(longer) as url:
        found, counters = scorer(settings(url), groups).score(groups)
    assert values(found) == [0.0, 0.5, 1.0, 1.0, 0.0] and counters["reward/flipped/judge"] == 0


def test_against_the_row_s_own_answer_and_equal_texts_need_no_question() -> None:
    seen: list[Any] = []
    groups = [group(["a", "bbbb", "ccc"], reference="ccc")]
    with model(longer, seen) as url:
        assert values(scorer(settings(url, against="reference"), groups).score(groups)[0]) == [0.0, 1.0, 0.5]
        with pytest.raises(BadInput, match="needs column ideal"):
            scorer(settings(url, against="ideal"), groups)
    assert len(seen) == 4


def test_a_judge_that_likes_first_places_says_nothing() -> None:
    groups = [group(["a", "bb"])]
    with model(lambda a, b: "A") as url:
        found, counters = scorer(settings(url), groups).score(groups)
    assert values(found) == [0.5, 0.5] and counters["reward/flipped/judge"] == 1


def test_no_verdict_is_unscored_and_counted() -> None:
    groups = [group(["a", "bb"])]
    with model(lambda a, b: "I cannot decide between A and B") as url:
        found, counters = scorer(settings(url), groups).score(groups)
    assert values(found) == [None, None] and counters["reward/failed/judge"] == 2


def test_rubric_and_key_reach_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rubric.md").write_text("Prefer polite answers.")
    monkeypatch.setenv("JUDGE_KEY", "k1")
    seen: list[Any] = []
    groups = [group(["a", "bb"])]
    with model(longer, seen) as url:
        scorer(settings(url, rubric=str(tmp_path / "rubric.md"), token_env="JUDGE_KEY"), groups).score(groups)
        with pytest.raises(BadInput, match="is no file"):
            scorer(settings(url, rubric="absent.md"), groups)
    headers, body = seen[0]
    assert headers["Authorization"] == "Bearer k1" and "Prefer polite answers." in body["messages"][0]["content"]
    assert body["temperature"] == 0 and body["model"] == "m"


def test_agreement_with_labelled_pairs() -> None:
    """The judge likes length: right on the first pair, wrong on the second, a tie on the third."""
    pairs = [("aaa", "a"), ("b", "bbb"), ("cc", "dd")]
    prompts = [Prompt.make("t", "q", None, {"chosen": c, "rejected": r}) for c, r in pairs]
    with model(longer) as url:
        found = asyncio.run(agreement(JudgeSettings(url=f"{url}/v1", model="m").judge(), prompts))
    assert found == Agreement(n=3, right=1, ties=1, flipped=0, failed=0) and found.share == 0.5
    assert "0.500" in found.sentence() and "1 wrong" in found.sentence()


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("A", "A"), ("because\n**B**", "B"), ("Verdict: tie.", "TIE"), ("[[A]]\n", "A"), ("A is better than B", None), ("", None)],
)
def test_verdicts(text: str, verdict: str | None) -> None:
    assert verdict_of(text) == verdict


def test_two_orders_as_one() -> None:
    assert settled("A", "B").score == 1.0 and settled("B", "A").score == 0.0 and settled("TIE", "TIE").score == 0.5
    assert settled("A", "A").flipped and settled("A", "TIE").score == 0.5 and settled(None, "A").score is None
