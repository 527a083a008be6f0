"""Compare two evaluations item by item: is B better than A, and how sure is that.

In: two evaluations of the same prompts under the same conditions (else BadInput). Out: a `Comparison` with a verdict.
SHIP: B is more often right, or not worse by more than the margin and shorter. HOLD: B is less often right. INCONCLUSIVE: neither is shown.
"More often" asks two things at once, because each alone is fooled by small samples: the bootstrap over clusters excludes 0, and the exact
sign test over clusters (McNemar where every item stands alone) is below 5 %. "Not worse" holds by the bootstrap and by Tango's score interval.

Example:
    >>> compare(before, after).verdict
    'SHIP'
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from policyloop.errors import BadInput, Exit
from policyloop.evaluation.evaluate import Evaluation, Item
from policyloop.stats import (
    ALPHA,
    Interval,
    cluster_bootstrap,
    cluster_means,
    clustered_mcnemar,
    design_effect,
    items_to_decide,
    mcnemar,
    paired_share,
    share,
    wilcoxon,
)

Verdict = Literal["SHIP", "HOLD", "INCONCLUSIVE"]
Pairs = Sequence[tuple[Item, Item]]
EXITS = {"SHIP": Exit.DONE, "HOLD": Exit.NO, "INCONCLUSIVE": Exit.UNDECIDED}
TOO_MANY = 100_000  # more further items than this is a way of saying that the two are alike


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired result; `difference` is B's accuracy minus A's (bootstrap over clusters), `score` its score interval, `length` B's tokens
    minus A's. `p`: exact over clusters; `mcnemar_p`: as if items were independent. `excess_length_reduction`: see `excess_length`."""

    a: str
    b: str
    n: int
    clusters: int
    accuracy_a: Interval
    accuracy_b: Interval
    difference: Interval
    score: Interval
    p: float
    mcnemar_p: float
    only_a: int
    only_b: int
    length_a: float
    length_b: float
    length: Interval
    wilcoxon_p: float
    margin: float
    verdict: Verdict
    reasons: tuple[str, ...]
    more_items: int | None
    notes: tuple[str, ...] = ()
    excess_length_reduction: float | None = None

    @property
    def exit_code(self) -> Exit:
        return EXITS[self.verdict]

    def lines(self) -> list[str]:
        """The whole result in words and numbers."""
        d, t = self.difference, self.length
        alone = self.clusters == self.n
        over = f"{self.n} items" + ("" if alone else f" in {self.clusters} clusters")
        p = f"McNemar p = {self.mcnemar_p:.2g}" + ("" if alone else f", over clusters p = {self.p:.2g}")
        percent = f"{100 * t.value / self.length_a:+.0f} %, " if self.length_a else ""
        excess = self.excess_length_reduction
        return [
            f"A {self.a}: {self.accuracy_a}, {self.length_a:.1f} tokens    B {self.b}: {self.accuracy_b}, {self.length_b:.1f} tokens",
            f"accuracy B - A: {d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}] ({over}; only A right {self.only_a}, "
            f"only B right {self.only_b}; {p})",
            f"length   B - A: {t.value:+.1f} tokens [{t.low:+.1f}, {t.high:+.1f}] ({percent}Wilcoxon p = {self.wilcoxon_p:.2g})",
            *([] if excess is None else [f"excess length reduction: {excess:.0%} of what A is longer than the base"]),
            *(f"note: {note}" for note in self.notes),
            f"{self.verdict}: {'; '.join(self.reasons)}{self._more()}",
        ]

    def _more(self) -> str:
        if self.verdict != "INCONCLUSIVE" or self.more_items is None:
            return ""
        if self.more_items > TOO_MANY:
            return f"; more than {TOO_MANY:,} further items would be needed: in accuracy the two are alike"
        return f"; about {self.more_items:,} more items would decide (4 times in 5, if this difference is the true one)"

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def compare(
    a: Evaluation,
    b: Evaluation,
    margin: float = 0.05,
    *,
    base: Evaluation | None = None,
    allow: Collection[str] = (),
    seed: int = 0,
) -> Comparison:
    """`margin`: how much less accuracy still counts as not worse. `base`: the start of A and B, for the excess length reduction. `allow`:
    conditions that may differ (`prompt`, `parser`, `max_new_tokens`, ...). Errors: BadInput where others do, or no item is shared."""
    if not 0 <= margin < 1:
        raise BadInput(f"margin {margin}", "0 up to 1 (0.05 = five points)", "--margin")
    same_conditions(a, b, allow)
    pairs = paired(a, b, allow)
    clusters = [x.cluster for x, _ in pairs]
    right_a, right_b = ([float(bool(i.correct)) for i in side] for side in zip(*pairs, strict=True))
    differences = [y - x for x, y in zip(right_a, right_b, strict=True)]
    only_a, only_b = differences.count(-1.0), differences.count(1.0)
    difference = cluster_bootstrap(differences, clusters, seed=seed)
    score = score_interval(differences, clusters)
    p = clustered_mcnemar([int(d) for d in differences], clusters)
    lengths = [float(y.length - x.length) for x, y in pairs]
    length, length_p = cluster_bootstrap(lengths, clusters, seed=seed), wilcoxon(cluster_means(lengths, clusters))
    verdict, reasons = judge(difference, score, p, length, length_p, margin)
    return Comparison(
        a=a.version,
        b=b.version,
        n=len(pairs),
        clusters=len(set(clusters)),
        accuracy_a=share(right_a, clusters),
        accuracy_b=share(right_b, clusters),
        difference=difference,
        score=score,
        p=p,
        mcnemar_p=mcnemar(only_a, only_b),
        only_a=only_a,
        only_b=only_b,
        length_a=statistics.fmean(x.length for x, _ in pairs),
        length_b=statistics.fmean(y.length for _, y in pairs),
        length=length,
        wilcoxon_p=length_p,
        margin=margin,
        verdict=verdict,
        reasons=tuple(reasons),
        more_items=further_items(difference, score, length, margin, len(pairs)) if verdict == "INCONCLUSIVE" else None,
        notes=tuple(notes_on(a, b, pairs)),
        excess_length_reduction=None if base is None else excess_length(base, a, b, allow),
    )


# --- the decision -----------------------------------------------------------------------------------------------------------


def score_interval(differences: Sequence[float], clusters: Sequence[str]) -> Interval:
    """Tango's interval at the effective size that the clusters leave."""
    n = len(differences)
    effect = design_effect(differences, clusters)
    low, high = paired_share(differences.count(-1.0) / effect, differences.count(1.0) / effect, n / effect)
    return Interval(statistics.fmean(differences), low, high)


def judge(
    difference: Interval, score: Interval, p: float, length: Interval, length_p: float, margin: float
) -> tuple[Verdict, list[str]]:
    """The decision rule, in words."""
    if difference.low > 0 and p < ALPHA:
        return "SHIP", [f"B is more often right (the whole interval is above 0: {difference.low:+.3f})"]
    if difference.high < 0 and p < ALPHA:
        return "HOLD", [f"B is less often right (the whole interval is below 0: {difference.high:+.3f})"]
    lowest = min(difference.low, score.low)
    shorter = length.high < 0 and length_p < ALPHA
    if lowest >= -margin and shorter:
        return "SHIP", [f"B is not worse by more than {margin:.0%} and shorter by {-length.value:.1f} tokens"]
    highest = max(difference.high, score.high)
    reasons = [f"accuracy may differ by anything from {lowest:+.3f} to {highest:+.3f}"]
    if lowest >= -margin:
        reasons = [f"B is not worse by more than {margin:.0%}, and not shown to be better or shorter"]
    elif shorter:
        reasons.append(f"B is shorter by {-length.value:.1f} tokens, but may be worse by more than {margin:.0%}")
    return "INCONCLUSIVE", reasons


def further_items(difference: Interval, score: Interval, length: Interval, margin: float, n: int) -> int | None:
    """How many more items until one of the ways to a verdict is open: a difference from 0, or not worse and shorter."""
    half = max(difference.high - difference.low, score.high - score.low) / 2
    ways = [items_to_decide(difference.value, half, n)]
    if difference.value > -margin and length.value < 0:
        kept, shorter = items_to_decide(difference.value + margin, half, n), _length_items(length, n)
        ways.append(None if kept is None or shorter is None else max(kept, shorter))
    needed = [w for w in ways if w is not None]
    return max(1, min(needed) - n) if needed else None


def _length_items(length: Interval, n: int) -> int | None:
    return n if length.high < 0 else items_to_decide(length.value, (length.high - length.low) / 2, n)


def excess_length(base: Evaluation, a: Evaluation, b: Evaluation, allow: Collection[str] = ()) -> float | None:
    """(length A - length B) / (length A - length base) on the same prompts (GFPO, equation 4): how much of the length that training added
    in A is gone in B. None where A is no longer than the base."""
    for other in (a, b):
        same_conditions(base, other, allow)
    pairs = paired(a, b, allow)
    of_a = {(x.prompt_id, x.sample): x.length for x, _ in pairs}
    of_b = {(y.prompt_id, y.sample): y.length for _, y in pairs}
    start = {(x.prompt_id, x.sample): x.length for x, _ in paired(base, a, allow)}
    shared = of_a.keys() & start.keys()
    added = sum(of_a[k] - start[k] for k in shared)
    return sum(of_a[k] - of_b[k] for k in shared) / added if added > 0 else None


# --- the same items under the same conditions -------------------------------------------------------------------------------


def same_conditions(a: Evaluation, b: Evaluation, allow: Collection[str] = ()) -> None:
    """Errors: BadInput naming the first condition that differs and may not, or a name in `allow` that is no condition."""
    x, y = _flat(a.conditions), _flat(b.conditions)
    if odd := sorted(set(allow) - {"prompt", *x, *y}):
        raise BadInput(f"--allow {odd[0]}", ", ".join(["prompt", *x]), "--allow")
    for key in [k for k in {**x, **y} if x.get(k) != y.get(k)]:
        if key not in allow:
            raise BadInput(
                f"the two evaluations differ in {key}: {x.get(key)} and {y.get(key)}",
                "the same task, prompts, decoding and parser on both sides",
                f"the options of both, or --allow {key} if that is meant",
            )


def _flat(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding's settings by their own names: {'task': ..., 'parser': ..., 'max_new_tokens': 64, 'samples': 1, ...}."""
    decoding = {"samples" if k == "n" else k: v for k, v in conditions.get("decoding", {}).items()}
    return {**{k: v for k, v in conditions.items() if k != "decoding"}, **decoding}


def paired(a: Evaluation, b: Evaluation, allow: Collection[str] = ()) -> list[tuple[Item, Item]]:
    """Items both sides judged, matched by prompt and sample (equal prompts by their order). Errors: BadInput where the same prompt
    reached the two models as other token ids (another template, tokenizer or system message)."""
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
    other = sum(bool(x.rendered and y.rendered) and x.rendered != y.rendered for x, y in pairs)
    if other and "prompt" not in allow:
        raise BadInput(
            f"the two evaluations differ in prompt: {other} of {len(pairs)} reached the models as other token ids",
            "the same chat template, tokenizer and system message",
            "--template, or --allow prompt if another template or model family is meant",
        )
    return pairs


def notes_on(a: Evaluation, b: Evaluation, pairs: Pairs) -> list[str]:
    """What a reader should know and might not expect."""
    notes = []
    lone = len(a.items) + len(b.items) - 2 * len(pairs)
    if lone:
        notes.append(f"{lone} items are left out: only one side answered or judged them")
    if any(x.rendered != y.rendered for x, y in pairs):
        notes.append("the two models were fed other token ids for the same prompts")
    versions = {e.about.get("policyloop") for e in (a, b)} - {None}
    if len(versions) > 1:
        notes.append(f"graded by different versions of policyloop ({', '.join(sorted(map(str, versions)))})")
    return notes
