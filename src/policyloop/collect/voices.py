"""Who counts, and what follows from it: votes in, one value per answer and one target per question out.

A voice counts with at most `per_voice` votes; one that shouts (far more votes than the median voice) is set aside whole and named, so
that a brigading key moves nothing. Keys that may label are the operator's own: they overrule the others and are not capped.

Example:
    >>> majority([("a", "5"), ("b", "5"), ("c", "7")]), majority([("a", "5"), ("b", "7")])
    ('5', None)
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policyloop.collect import CollectSettings
from policyloop.tasks.overlap import normalise

Vote = Mapping[str, Any]
ORDER = ("outcome", "score", "thumb")  # what came of an answer says more than what somebody thought of it


def heard(rows: Sequence[dict[str, Any]], chosen: CollectSettings) -> dict[str, int]:
    """Takes from `rows` the votes that do not count. Returns the voices that were set aside, with how many votes each had."""
    for row in rows:
        if row["target"] and not any(v["kind"] == "answer" and v["voice"] == row["voice"] for v in row["votes"]):
            own = {"voice": row["voice"], "label": False, "kind": "answer", "value": row["target"], "at": row["at"]}
            row["votes"] = [own, *row["votes"]]  # the right answer came with the request: its sender says so
    votes = Counter(v["voice"] for row in rows for v in row["votes"] if not v["label"])
    typical = statistics.median(votes.values()) if votes else 0
    loud = {voice: n for voice, n in votes.items() if n > chosen.per_voice and n > chosen.loud * typical}
    places: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        for vote in row["votes"]:
            if not vote["label"]:
                places[vote["voice"]].append((row["request_id"], vote["kind"]))
    counted = {voice: set(sorted(found, key=_drawn)[: chosen.per_voice]) for voice, found in places.items() if voice not in loud}
    for row in rows:
        row["votes"] = [v for v in row["votes"] if v["label"] or (row["request_id"], v["kind"]) in counted.get(v["voice"], ())]
    return loud


def _drawn(place: tuple[str, str]) -> bytes:
    """An order that nobody chooses: a fair sample of a voice's votes, the same one every time."""
    return hashlib.blake2b("/".join(place).encode(), digest_size=8).digest()


def strongest(votes: Iterable[Vote]) -> list[Vote]:
    """The labels among them where there are any, else all."""
    votes = list(votes)
    return [v for v in votes if v["label"]] or votes


def opinion(votes: Iterable[Vote]) -> float | None:
    """What an answer is worth in [0, 1] by outcome, else score, else thumb; the mean over voices. None: nobody said."""
    votes = list(votes)
    for kind in ORDER:
        found = strongest(v for v in votes if v["kind"] == kind)
        if found:
            values = [(v["value"] + 1) / 2 if kind == "thumb" else v["value"] for v in found]
            return sum(values) / len(values)
    return None


def majority(votes: Iterable[tuple[str, str]]) -> str | None:
    """The answer of more than half of the voices (spelled as its first voice spelled it); each voice has one, its last."""
    last = dict(votes)
    spelled: dict[str, str] = {}
    for text in last.values():
        spelled.setdefault(normalise(text), text)
    ((winner, count),) = Counter(normalise(t) for t in last.values()).most_common(1) or [("", 0)]
    return spelled[winner] if 2 * count > len(last) and winner else None
