"""The gate: may this candidate replace the stable version? SHIP, HOLD or INCONCLUSIVE, with a reason for each thing that was asked.

In: evaluations of both on the same frozen items (`compare` pairs them), of regression suites, and what else was measured. Out: a `Report`.
Every check has a verdict of its own. One HOLD holds; else one INCONCLUSIVE leaves it open and says how many more items would decide;
else SHIP. Paired tests decide about accuracy, point values about length, latency, cost, KL and format.

Example:
    >>> report = gate(stable, candidate, GateSettings(min_accuracy=0.65), contaminated=contamination(items, task.train()))
    >>> report.verdict, report.exit_code
    ('HOLD', 3)
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from policyloop.config import to_tree
from policyloop.errors import BadInput, Exit
from policyloop.evaluation import GateSettings
from policyloop.evaluation.compare import EXITS, Comparison, Verdict, compare
from policyloop.evaluation.distance import Distance
from policyloop.evaluation.evaluate import Evaluation
from policyloop.evaluation.suite import Contamination
from policyloop.stats import ALPHA, Interval, items_to_decide, kappa

Sides = tuple[Evaluation, Evaluation]  # stable, candidate
EVENTS = {"SHIP": "gate_passed", "HOLD": "gate_failed", "INCONCLUSIVE": "gate_undecided"}
MIN_LABELS = 30  # people's labels below which a judge's agreement says nothing


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was asked. `more_items`: about how many further items would decide it, where it is open."""

    name: str
    verdict: Verdict
    sentence: str
    more_items: int | None = None


@dataclass(frozen=True)
class Report:
    """The decision and everything it stands on; `tree` is what the store keeps."""

    stable: str
    candidate: str
    checks: tuple[Check, ...]
    comparison: Comparison | None
    settings: GateSettings
    suite: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        found = {c.verdict for c in self.checks}
        return "HOLD" if "HOLD" in found else "INCONCLUSIVE" if "INCONCLUSIVE" in found else "SHIP"

    @property
    def exit_code(self) -> Exit:
        return EXITS[self.verdict]

    @property
    def more_items(self) -> int | None:
        """What the slowest open check needs."""
        return max((c.more_items for c in self.checks if c.verdict == "INCONCLUSIVE" and c.more_items), default=None)

    @property
    def reason(self) -> str:
        """In one sentence: what decided."""
        decisive = [c.sentence for c in self.checks if c.verdict == self.verdict]
        more = (
            f"; about {self.more_items:,} more items would decide" if self.verdict == "INCONCLUSIVE" and self.more_items else ""
        )
        return "; ".join(decisive if self.verdict != "SHIP" else [self.checks[-1].sentence]) + more

    def lines(self) -> list[str]:
        width = max(len(c.name) for c in self.checks)
        signs = {"SHIP": "pass", "HOLD": "HOLD", "INCONCLUSIVE": "open"}
        return [
            f"stable {self.stable}, candidate {self.candidate}",
            *(f"{signs[c.verdict]}  {c.name:<{width}}  {c.sentence}" for c in self.checks),
            f"{self.verdict}: {self.reason}",
        ]

    def tree(self) -> dict[str, Any]:
        """For the store and for `--save`: plain JSON, numbers without one as text."""
        found = {
            "verdict": self.verdict,
            "reason": self.reason,
            "more_items": self.more_items,
            "stable": self.stable,
            "candidate": self.candidate,
            "suite": dict(self.suite),
            "checks": [asdict(c) for c in self.checks],
            "comparison": None if self.comparison is None else asdict(self.comparison),
            "settings": to_tree(self.settings),
        }
        return _plain(found)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.tree(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def gate(
    stable: Evaluation,
    candidate: Evaluation,
    settings: GateSettings,
    *,
    regressions: Mapping[str, Sides] | None = None,
    contaminated: Contamination | None = None,
    distance: Distance | None = None,
    agreement: Interval | None = None,
    labels: int = 0,
    suite: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
) -> Report:
    """Errors: BadInput where the two were not measured alike, or a limit is set on something that was not measured."""
    checks = list[Check]()
    if contaminated is not None and contaminated.ids:
        checks.append(_contamination(contaminated, settings))
        if settings.contaminated == "drop":
            stable, candidate = (_without(side, contaminated.ids) for side in (stable, candidate))
        if checks[-1].verdict == "HOLD" or not candidate.judged:
            return Report(stable.version, candidate.version, tuple(checks), None, settings, suite or {})
    if settings.judge_labels is not None:
        checks.append(_judge(agreement, labels, settings))
    result = compare(stable, candidate, settings.margin, allow=allow)
    checks += _limits(stable, candidate, result, distance, settings)
    checks += [_regression(name, sides, settings, allow) for name, sides in (regressions or {}).items()]
    checks += [*_bar(candidate, settings), _enough(result, settings), _accuracy(result, settings)]
    return Report(stable.version, candidate.version, tuple(checks), result, settings, suite or {})


# --- accuracy ---------------------------------------------------------------------------------------------------------------


def _accuracy(r: Comparison, s: GateSettings) -> Check:
    """Better, or not worse, by the paired tests of `compare`."""
    said = f"accuracy {r.accuracy_a.value:.3f} to {r.accuracy_b.value:.3f}, difference {r.difference.value:+.3f} [{r.difference.low:+.3f}, {r.difference.high:+.3f}]"
    if s.require == "better" or r.verdict == "HOLD":
        return Check("accuracy", r.verdict, f"{said}: {r.reasons[0]}", r.more_items)
    return _not_worse("accuracy", r, s.margin, said)


def _not_worse(name: str, r: Comparison, margin: float, said: str) -> Check:
    lowest = min(r.difference.low, r.score.low)
    if lowest >= -margin:
        return Check(name, "SHIP", f"{said}: not worse by more than {margin:.0%}")
    half = max(r.difference.high - r.difference.low, r.score.high - r.score.low) / 2
    needed = items_to_decide(r.difference.value + margin, half, r.n)
    more = None if needed is None else max(1, needed - r.n)
    return Check(name, "INCONCLUSIVE", f"{said}: may be worse by more than {margin:.0%}", more)


def _regression(name: str, sides: Sides, s: GateSettings, allow: Collection[str]) -> Check:
    """A suite that must not become worse: shown worse, or beyond the margin for sure, holds."""
    r = compare(*sides, s.regression_margin, allow=allow)
    said = f"{r.accuracy_a.value:.3f} to {r.accuracy_b.value:.3f} on {r.n} items"
    worse = r.difference.high < 0 and r.p < ALPHA and r.difference.value < -s.regression_margin
    if worse or max(r.difference.high, r.score.high) < -s.regression_margin:
        return Check(f"regression {name}", "HOLD", f"{said}: worse")
    return _not_worse(f"regression {name}", r, s.regression_margin, said)


def _bar(candidate: Evaluation, s: GateSettings) -> Iterator[Check]:
    """An absolute bar holds for the truth, not for a lucky sample: the interval decides."""
    if s.min_accuracy is None:
        return
    a, n = candidate.accuracy, len(candidate.judged)
    said = f"accuracy {a} against the bar {s.min_accuracy:g}"
    if a.low >= s.min_accuracy:
        yield Check("min_accuracy", "SHIP", said)
    elif a.high < s.min_accuracy:
        yield Check("min_accuracy", "HOLD", said)
    else:
        needed = items_to_decide(a.value - s.min_accuracy, (a.high - a.low) / 2, n)
        yield Check("min_accuracy", "INCONCLUSIVE", said, None if needed is None else max(1, needed - n))


def _enough(r: Comparison, s: GateSettings) -> Check:
    """Too few items never ship, however clear they look."""
    said = f"{r.clusters} independent items, at least {s.min_items} are asked for"
    short = s.min_items - r.clusters
    return Check("min_items", "SHIP" if short <= 0 else "INCONCLUSIVE", said, short if short > 0 else None)


# --- limits -----------------------------------------------------------------------------------------------------------------


def _limits(a: Evaluation, b: Evaluation, r: Comparison, distance: Distance | None, s: GateSettings) -> Iterator[Check]:
    bad = sum(i.truncated or i.correct is None or not i.text.strip() for i in b.items) / max(1, len(b.items))
    ratios = (
        ("length", s.max_length_ratio, lambda: _ratio(r.length_b, r.length_a)),
        ("latency", s.max_latency_ratio, lambda: _ratio(_latency(b), _latency(a))),
        ("cost", s.max_cost_ratio, lambda: _ratio(_cost(b, s), _cost(a, s))),
    )
    for name, limit, value in ratios:
        if limit is not None:
            yield _limit(name, value(), limit, "of the stable version's")
    if s.max_format_errors is not None:
        yield _limit("format errors", bad, s.max_format_errors, "of the answers are cut off, empty or cannot be judged")
    if s.max_kl is not None:
        if distance is None:
            raise BadInput("evaluation.gate.max_kl and two saved evaluations", "models, or no max_kl", "evaluation.gate.max_kl")
        yield _limit("KL to stable", distance.kl, s.max_kl, "nats a token")


def _limit(name: str, value: float, limit: float, what: str) -> Check:
    good = value <= limit  # False for NaN
    return Check(name, "SHIP" if good else "HOLD", f"{value:.3g} {what}, {'within' if good else 'above'} {limit:g}")


def _ratio(b: float, a: float) -> float:
    return b / a if a > 0 else math.inf if b > 0 else 1.0


def _latency(e: Evaluation) -> float:
    """Seconds per answer while this was measured: comparable where both sides ran on the same machine in one go."""
    return _about(e, "seconds", "max_latency_ratio") / max(1, len(e.items))


def _cost(e: Evaluation, s: GateSettings) -> float:
    tokens = _about(e, "prompt_tokens", "max_cost_ratio")
    return s.token_price_in * tokens + s.token_price_out * sum(i.length for i in e.items)


def _about(e: Evaluation, key: str, setting: str) -> float:
    if key not in e.about:
        raise BadInput(f"{e.version} was saved without {key}", "evaluations by this version", f"evaluation.gate.{setting}")
    return float(e.about[key])


# --- may the evidence be believed -------------------------------------------------------------------------------------------


def _contamination(c: Contamination, s: GateSettings) -> Check:
    if s.contaminated == "drop":
        return Check("contamination", "SHIP", f"{c.sentence()}: left out")
    return Check("contamination", "HOLD", f"{c.sentence()}: what was trained on proves nothing")


def _judge(agreement: Interval | None, labels: int, s: GateSettings) -> Check:
    """A judge that people disagree with cannot decide anything."""
    if agreement is None:
        raise BadInput("evaluation.gate.judge_labels without labels", "a file of {judge, human}", "evaluation.gate.judge_labels")
    said = f"kappa with people {agreement} on {labels} labels, at least {s.judge_agreement:g}"
    good = labels >= MIN_LABELS and agreement.low >= s.judge_agreement
    return Check("judge", "SHIP" if good else "HOLD", said + ("" if good else ": the judge is refused"))


def agreement_of(path: Path) -> tuple[Interval, int]:
    """Labels of a judge and of people on the same answers: JSON Lines of {"judge": ..., "human": ...}. Errors: BadInput."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        judged, human = [r["judge"] for r in rows], [r["human"] for r in rows]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        given = f"{path} has no labels ({type(problem).__name__}: {problem})"
        raise BadInput(given, 'lines of {"judge": ..., "human": ...}', "evaluation.gate.judge_labels") from None
    return kappa(judged, human), len(rows)


def _without(e: Evaluation, ids: Collection[str]) -> Evaluation:
    """`about`'s totals are left: latency and cost stay those of what was run."""
    return replace(e, items=tuple(i for i in e.items if i.prompt_id not in ids))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
