"""The distance between two models, on engines whose log-probs are written down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from policyloop.engine import Request
from policyloop.evaluation.distance import answers, distance
from policyloop.types import Completion


class Fixed:
    """One word of two, with the same probability at every position; greedy takes the likelier one, sampling follows `drawn`."""

    def __init__(self, p: float, drawn: Mapping[str, Sequence[int]] | None = None) -> None:
        self.p, self.drawn = p, drawn or {}

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        found = []
        for r in requests:
            likely = 0 if self.p >= 0.5 else 1
            drawn = self.drawn[r.uid.split("/")[1]] if r.params.temperature else [likely] * r.params.max_new_tokens
            ids = tuple(drawn)
            found.append(Completion(r.prompt_token_ids, ids, (0.0,) * len(ids), "length", "v", "".join(map(str, ids))))
        return found

    def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        return [math.log(self.p if i == 0 else 1 - self.p) if 0 < self.p < 1 else -math.inf for i in token_ids]


def test_kl_is_the_textbook_one_on_samples_in_proportion() -> None:
    """4 of 5 sampled tokens are word 0 of a model with p = 0.8: the estimate is then the sum itself."""
    one = Fixed(0.8, {"a": [0, 0, 0, 0, 1]})
    said = answers(one, {"a": [7]}, max_new_tokens=5)  # type: ignore[arg-type]
    found = distance(said, Fixed(0.6))  # type: ignore[arg-type]
    assert found.kl == pytest.approx(0.8 * math.log(0.8 / 0.6) + 0.2 * math.log(0.2 / 0.4))
    assert found.greedy_same == 1 and found.tokens == 10 and found.prompts == 1
    zero, one_ = math.log(0.8 / 0.6), math.log(0.4 / 0.2)
    assert found.logprob_mean == pytest.approx((9 * zero + one_) / 10) and found.logprob_max == pytest.approx(one_)


def test_the_same_model_is_at_zero_and_another_greedy_word_shows() -> None:
    one = Fixed(0.8, {"a": [0, 1], "b": [1]})
    said = answers(one, {"a": [7], "b": [8]}, max_new_tokens=2)  # type: ignore[arg-type]
    same = distance(said, one)  # type: ignore[arg-type]
    assert (same.kl, same.logprob_max, same.greedy_same) == (0, 0, 1) and "greedy answers 2/2 alike" in same.sentence()
    assert distance(said, Fixed(0.3)).greedy_same == 0  # type: ignore[arg-type]


def test_a_model_that_gives_no_probability_is_infinitely_far() -> None:
    said = answers(Fixed(0.8, {"a": [0]}), {"a": [7]}, max_new_tokens=1)  # type: ignore[arg-type]
    found = distance(said, Fixed(1.0))  # type: ignore[arg-type]
    assert found.kl == math.inf and found.logprob_mean == math.inf
