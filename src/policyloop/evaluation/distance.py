"""How far apart two models are on the same prompts: same words, same probabilities? Used by export's parity check and by the gate.

In: prompts as token ids, and two engines. One of them (the trained model, the stable version) answers each prompt greedily and once at
temperature 1; the other is asked for its own greedy answers, and for its log-probs of the first one's tokens. Out: a `Distance`.

Example:
    >>> said = answers(trained, {"q1": (1, 8, 9)}, max_new_tokens=32)
    >>> distance(said, exported).sentence()
    'greedy answers 16/16 alike; log-probs apart by 0.00031 on average, 0.0042 at most; KL 1.1e-06 a token (918 tokens)'
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policyloop.engine import Engine, Request
from policyloop.types import SamplingParams

KL_CAP = 20.0  # nats of a single token's log-ratio: exp of more says nothing new and overflows


@dataclass(frozen=True, slots=True)
class Answer:
    """What one model said to one prompt, and the log-probs (temperature 1) it gives its own tokens. A text is for people: it is the
    token ids that are compared."""

    prompt_id: str
    greedy: bool
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str

    @staticmethod
    def of(tree: Mapping[str, Any]) -> Answer:
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in tree.items()}
        return Answer(**given)


@dataclass(frozen=True, slots=True)
class Distance:
    """greedy_same: share of prompts whose greedy answers are equal to the last token. logprob_mean, logprob_max: absolute differences of
    log-probs. kl: KL(first || second) in nats per sampled token, estimated from the first model's own samples (never negative)."""

    prompts: int
    tokens: int
    greedy_same: float
    logprob_mean: float
    logprob_max: float
    kl: float

    def sentence(self) -> str:
        return (
            f"greedy answers {round(self.greedy_same * self.prompts)}/{self.prompts} alike; log-probs apart by {self.logprob_mean:.2g} "
            f"on average, {self.logprob_max:.2g} at most; KL {self.kl:.2g} a token ({self.tokens:,} tokens)"
        )


def answers(engine: Engine, prompts: Mapping[str, Sequence[int]], max_new_tokens: int, seed: int = 0) -> list[Answer]:
    """Each prompt's greedy answer, then one sampled answer each. `prompts`: id -> token ids."""
    found = []
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        completions = engine.run([Request(f"distance/{name}", tuple(ids), params) for name, ids in prompts.items()])
        for (name, ids), c in zip(prompts.items(), completions, strict=True):
            logprobs = tuple(engine.score(ids, c.token_ids))
            found.append(Answer(name, temperature == 0, tuple(ids), c.token_ids, logprobs, c.text))
    return found


def distance(said: Sequence[Answer], other: Engine) -> Distance:
    """`other` beside what the first model said. A log-prob that is not finite counts as infinitely far."""
    greedy = [a for a in said if a.greedy]
    longest = max((len(a.token_ids) for a in greedy), default=1)
    params = SamplingParams(max_new_tokens=longest, temperature=0.0)
    own = other.run([Request(f"distance/{a.prompt_id}", a.prompt_token_ids, params) for a in greedy])
    same = [a.token_ids == c.token_ids for a, c in zip(greedy, own, strict=True)]
    gaps, terms = list[float](), list[float]()
    for a in said:
        theirs = other.score(a.prompt_token_ids, a.token_ids)
        ratios = [y - x if math.isfinite(y) else -math.inf for x, y in zip(a.logprobs, theirs, strict=True)]
        gaps += [abs(r) for r in ratios]
        if not a.greedy:  # E over the first model's samples of (p/q form) exp(r) - 1 - r: unbiased, and at least 0 term by term
            terms += [math.inf if r == -math.inf else math.expm1(min(r, KL_CAP)) - r for r in ratios]
    return Distance(
        prompts=len(greedy),
        tokens=len(gaps),
        greedy_same=statistics.fmean(same) if same else math.nan,
        logprob_mean=statistics.fmean(gaps) if gaps else math.nan,
        logprob_max=max(gaps, default=math.nan),
        kl=statistics.fmean(terms) if terms else math.nan,
    )
