"""Collect: what was served and what people said of it, made into training data. No torch.

    journal x feedback --join (duckdb)--> exchanges with votes --voices--> what counts --curate--> a set:
        prompts.jsonl     questions with their right answer, wrong and wasteful ones first      -> task `jsonl`, `feedback` (RL)
        pairs.jsonl       prompt, chosen, rejected                                              -> task `preference`
        sft.jsonl         prompt, demonstration                                                 -> task `jsonl`, rl_strategy sft
        offpolicy.parquet exact ids, behaviour log-probs, version, value of unredacted answers  -> off-policy correction
        curation.json     counts, settings, what was left out and why, the journal files read

A set is a version of the store's shelf `datasets`: files by sha256, a manifest, lineage. Every row names the requests it comes from.

Example:
    >>> curated = curate(CollectSettings(store="store"), held_out=[DataSettings(task="gsm8k", path="gsm8k")])
    >>> str(curated.version), curated.counts["prompts"]
    ('feedback@3', 212)
"""

from __future__ import annotations

from policyloop.errors import BadInput
from policyloop.types import settings


@settings
class CollectSettings:
    """How requests and feedback become a training set.

    store: where the journal lies and the set goes; null = POLICYLOOP_STORE, else `store`. name: the set's name on the shelf `datasets`.
    model: only requests to this model; null = all. days: how far back. shared_keys: keys behind which many people stand (an
    application's own): each `user` is a voice there; elsewhere a key is one voice. per_voice: votes that count of one voice. loud: a
    voice with more than per_voice votes and more than this many times the median is set aside whole. near: similarity from which a
    question is a copy of a held-out one; null = exact copies only. long: an answer this many times as long as the median right one is
    wasteful. good: value from which an answer may be imitated. limit: prompts in a set, null = all; wrong and wasteful ones come first.
    """

    store: str | None = None
    name: str = "feedback"
    model: str | None = None
    days: float = 90.0
    shared_keys: tuple[str, ...] = ("anybody",)
    per_voice: int = 100
    loud: float = 20.0
    near: float | None = 0.8
    long: float = 2.0
    good: float = 0.75
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, low in (("days", 0), ("per_voice", 0), ("loud", 1), ("long", 1)):
            if not getattr(self, name) > low:
                raise BadInput(f"collect.{name} = {getattr(self, name)}", f"a number above {low}", f"collect.{name}")
        if not 0.5 <= self.good <= 1:
            raise BadInput(f"collect.good = {self.good}", "0.5 to 1", "collect.good")
        if self.near is not None and not 0 < self.near <= 1:
            raise BadInput(f"collect.near = {self.near}", "above 0, at most 1, or null", "collect.near")
        if self.limit is not None and self.limit < 1:
            raise BadInput(f"collect.limit = {self.limit}", "1 or more, or null", "collect.limit")
