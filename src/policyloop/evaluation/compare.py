"""Compare two evaluations item by item: is B better than A, and how sure is that.

Verdict: SHIP (accuracy better, or not worse by more than the margin and clearly shorter), HOLD (worse), INCONCLUSIVE (the interval says neither).
Pairs are the same prompts under the same conditions; whole clusters are drawn where prompts share a key.

Example:
    >>> compare(before, after).verdict
    'SHIP'
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from policyloop.errors import BadInput, Exit
from policyloop.evaluation.evaluate import Evaluation, Item
from policyloop.stats import Interval, items_to_decide, mcnemar, paired_bootstrap, wilcoxon

Verdict = Literal["SHIP", "HOLD", "INCONCLUSIVE"]
EXITS = {"SHIP": Exit.DONE, "HOLD": Exit.NO, "INCONCLUSIVE": Exit.UNDECIDED}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired result; `difference` is B's accuracy minus A's, `length` B's tokens minus A's."""

    a: str
    b: str
    n: int
    clusters: int
    accuracy_a: Interval
    accuracy_b: Interval
    difference: Interval
    mcnemar_p: float
    only_a: int
    only_b: int
    length: Interval
    wilcoxon_p: float
    verdict: Verdict
    reasons: tuple[str, ...]
    more_items: int | None

    @property
    def exit_code(self) -> Exit:
        return EXITS[self.verdict]

    def lines(self) -> list[str]:
        more = f"; about {self.more_items} more items would decide" if self.more_items else ""
        return [
            f"A {self.a}: {self.accuracy_a}    B {self.b}: {self.accuracy_b}",
            f"accuracy B - A: {self.difference.value:+.3f} [{self.difference.low:+.3f}, {self.difference.high:+.3f}]"
            f" (n = {self.n}, {self.clusters} clusters; only A right {self.only_a}, only B right {self.only_b}, McNemar p = {self.mcnemar_p:.2g})",
            f"length   B - A: {self.length.value:+.1f} tokens [{self.length.low:+.1f}, {self.length.high:+.1f}] (Wilcoxon p = {self.wilcoxon_p:.2g})",
            f"{self.verdict}: {'; '.join(self.reasons)}{more}",
        ]


def compare(a: Evaluation, b: Evaluation, margin: float = 0.05, seed: int = 0, allow_other_limits: bool = False) -> Comparison:
    """Errors: BadInput where task, decoding or the items themselves differ. `margin`: how much worse still counts as not worse."""
    _same_conditions(a, b, allow_other_limits)
    pairs = _pairs(a, b)
    clusters = [x.cluster for x, _ in pairs]
    differences = [float(bool(y.correct)) - float(bool(x.correct)) for x, y in pairs]
    difference = paired_bootstrap(differences, clusters, seed=seed)
    lengths = [float(y.length - x.length) for x, y in pairs]
    length = paired_bootstrap(lengths, clusters, seed=seed)
    only_a, only_b = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    verdict, reasons = judge(difference, length, margin)
    half = (difference.high - difference.low) / 2
    needed = items_to_decide(difference.value, half, len(pairs)) if verdict == "INCONCLUSIVE" else None
    return Comparison(
        a.version,
        b.version,
        len(pairs),
        len(set(clusters)),
        a.accuracy,
        b.accuracy,
        difference,
        mcnemar(only_a, only_b),
        only_a,
        only_b,
        length,
        wilcoxon(lengths),
        verdict,
        tuple(reasons),
        None if needed is None else max(1, needed - len(pairs)),
    )


def judge(difference: Interval, length: Interval, margin: float) -> tuple[Verdict, list[str]]:
    """The decision rule, in words."""
    if difference.low > 0:
        return "SHIP", [f"B is more often right (the whole interval is above 0: {difference.low:+.3f})"]
    if difference.high < 0:
        return "HOLD", [f"B is less often right (the whole interval is below 0: {difference.high:+.3f})"]
    if difference.low >= -margin and length.high < 0:
        return "SHIP", [f"B is not worse by more than {margin:.0%} and shorter by {-length.value:.1f} tokens"]
    return "INCONCLUSIVE", [f"the difference may be anything from {difference.low:+.3f} to {difference.high:+.3f}"]


def _same_conditions(a: Evaluation, b: Evaluation, allow_other_limits: bool) -> None:
    for key in sorted({*a.conditions, *b.conditions}):
        x, y = a.conditions.get(key), b.conditions.get(key)
        if key == "decoding" and allow_other_limits and isinstance(x, dict) and isinstance(y, dict):
            x, y = ({k: v for k, v in d.items() if k != "max_new_tokens"} for d in (x, y))
        if x != y:
            raise BadInput(
                f"the two evaluations differ in {key}: {x} and {y}",
                "the same task, decoding and parser on both sides",
                "the options of both",
            )


def _pairs(a: Evaluation, b: Evaluation) -> list[tuple[Item, Item]]:
    """Items both sides judged, matched by prompt and sample (equal prompts by their order)."""
    theirs: dict[tuple[str, int], list[Item]] = defaultdict(list)
    for item in b.items:
        theirs[item.prompt_id, item.sample].append(item)
    pairs = []
    for x in a.items:
        matches = theirs[x.prompt_id, x.sample]
        if matches:
            y = matches.pop(0)
            if x.correct is not None and y.correct is not None:
                pairs.append((x, y))
    if not pairs:
        raise BadInput("the two evaluations share no judged item", "evaluations of the same prompts", "A or B")
    return pairs
