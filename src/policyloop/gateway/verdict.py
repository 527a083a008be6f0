"""What a release has shown so far: sessions to units, units to arms, arms to a three-valued verdict. Pure; stats.py has the mathematics.

    outcome of a request --(session's first k, averaged)--> unit --(counts once per release, version, signal)--> Arm per stratum
    strata (one per share of the candidate) --(product of e-values)--> verdict pass | fail | inconclusive

A stratum is a stretch of constant shares: within one, both arms see the same traffic at the same time, so that a busy hour during a larger
share cannot look like a better version. Replicas write their strata to the store and every one of them adds up all.

Example:
    >>> evidence.outcome(version=2, session="ann", stratum=0, signal="errors", value=1.0, now=0.0)
    >>> judge(evidence.arms(), stable=1, candidate=2, release=ReleaseSettings()).outcome
    'inconclusive'
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from policyloop.gateway import ReleaseSettings, SignalSettings, signals
from policyloop.stats import ALPHA, Arm, Claim, Interval, difference_sequence, log_evidence

Outcome = Literal["pass", "fail", "inconclusive"]
Key = tuple[int, int, str]  # stratum, version, signal
WIDEST = 0.5  # no step passes a candidate that may be half the outcomes worse
IN_SHADOW = ("errors", "slow", "long", "verifier")  # what can be seen of answers that nobody gets


class Evidence:
    """One replica's units of one release. A session counts once per version and signal, however much it asks."""

    def __init__(self, unit_outcomes: int, unit_idle_s: float) -> None:
        self._most, self._idle = unit_outcomes, unit_idle_s
        self._arms: dict[Key, Arm] = defaultdict(Arm)
        self._open: dict[tuple[int, str, str], tuple[int, float, list[float]]] = {}  # -> stratum, last seen, outcomes
        self._counted: set[int] = set()  # hashes: a busy day has many sessions

    def outcome(self, *, version: int, session: str, stratum: int, signal: str, value: float, now: float) -> None:
        unit = (version, signal, session)
        if hash(unit) in self._counted:
            return
        began, _, values = self._open.get(unit, (stratum, now, []))
        values.append(value)
        self._open[unit] = (began, now, values)
        if len(values) >= self._most:
            self._close(unit)

    def single(self, *, version: int, stratum: int, signal: str, value: float) -> None:
        """A unit of one outcome: a request that belongs to no session. Nothing is remembered of it."""
        key = (stratum, version, signal)
        self._arms[key] = self._arms[key].and_one(value)

    def close_idle(self, now: float) -> None:
        for unit in [u for u, (_, seen, _) in self._open.items() if now - seen >= self._idle]:
            self._close(unit)

    def _close(self, unit: tuple[int, str, str]) -> None:
        version, signal, _ = unit
        stratum, _, values = self._open.pop(unit)
        self._counted.add(hash(unit))
        key = (stratum, version, signal)
        self._arms[key] = self._arms[key].and_one(sum(values) / len(values))

    def arms(self) -> dict[Key, Arm]:
        return dict(self._arms)


def to_json(arms: Mapping[Key, Arm]) -> list[dict[str, Any]]:
    return [{"stratum": k[0], "version": k[1], "signal": k[2], **asdict(arm)} for k, arm in sorted(arms.items())]


def merged(replicas: Iterable[list[dict[str, Any]]]) -> dict[Key, Arm]:
    """The strata of all replicas, added up."""
    out: dict[Key, Arm] = defaultdict(Arm)
    for rows in replicas:
        for row in rows:
            out[(row["stratum"], row["version"], row["signal"])] += Arm(row["n"], row["total"])
    return dict(out)


@dataclass(frozen=True, slots=True)
class SignalVerdict:
    """One signal: evidence that the candidate is worse by more than the margin, and that it is not, each against its bound (e-values)."""

    signal: str
    outcome: Outcome
    needed: bool
    worse: float
    worse_bound: float
    not_worse: float
    not_worse_bound: float
    stable: Arm
    candidate: Arm

    def difference(self, alpha: float = ALPHA) -> Interval:
        """candidate - stable over all strata, with an interval that holds at all times together."""
        return difference_sequence(self.stable, self.candidate, alpha)

    def sentence(self) -> str:
        if not self.stable.n or not self.candidate.n:
            return (
                f"{self.signal}: no data ({self.candidate.n:g} units of the candidate, {self.stable.n:g} of the stable version)"
            )
        seen = f"{self.candidate.mean:.3f} of {self.candidate.n:g} units against {self.stable.mean:.3f} of {self.stable.n:g}"
        gap = self.difference()
        return f"{self.signal}: {seen}, difference {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"

    def tree(self) -> dict[str, Any]:
        return {**asdict(self), "difference": asdict(self.difference()) if self.stable.n and self.candidate.n else None}


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    signals: tuple[SignalVerdict, ...] = ()

    def reason(self) -> str:
        """What decided, in one sentence."""
        telling = [s for s in self.signals if s.outcome == self.outcome and (s.needed or self.outcome == "fail")]
        return "; ".join(s.sentence() for s in telling) or "no data"

    def tree(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "signals": [s.tree() for s in self.signals]}


def judge(
    arms: Mapping[Key, Arm],
    stable: int,
    candidate: int,
    release: ReleaseSettings,
    *,
    share: float | None = None,
    only: Collection[str] | None = None,
) -> Verdict:
    """Any signal that fails fails the release; it passes when every needed one passes. `only`: the signals that can be seen now.

    Failing is bounded over all signals together (alpha is split); passing needs no correction, since all must agree. At a smaller
    `share` than the last step's a pass allows a margin that is larger in proportion: share x margin, the harm to all sessions, is
    what stays the same. Failing always asks for the margin itself.
    """
    rows = {name: s for name, s in signals(release).items() if only is None or name in only}
    wider = 1.0 if not share else max(1.0, release.steps[-1] / share)
    found = tuple(_signal(arms, stable, candidate, name, s, release.alpha, len(rows), wider) for name, s in rows.items())
    if any(s.outcome == "fail" for s in found):
        return Verdict("fail", found)
    needed = [s for s in found if s.needed]
    return Verdict("pass" if needed and all(s.outcome == "pass" for s in needed) else "inconclusive", found)


def _signal(
    arms: Mapping[Key, Arm],
    stable: int,
    candidate: int,
    name: str,
    signal: SignalSettings,
    alpha: float,
    signals: int,
    wider: float,
) -> SignalVerdict:
    strata = sorted({k[0] for k in arms if k[2] == name})
    pairs = [(arms.get((s, stable, name), Arm()), arms.get((s, candidate, name), Arm())) for s in strata]

    def evidence(claim: Claim, margin: float) -> float:
        return sum(log_evidence(a, b, margin, claim) for a, b in pairs)

    worse, not_worse = evidence("worse", signal.margin), evidence("not_worse", min(WIDEST, signal.margin * wider))
    worse_bound, not_worse_bound = signals / alpha, 1 / alpha
    outcome: Outcome = "inconclusive"
    if worse >= math.log(worse_bound):
        outcome = "fail"
    elif not_worse >= math.log(not_worse_bound):
        outcome = "pass"
    all_stable, all_candidate = sum((a for a, _ in pairs), Arm()), sum((b for _, b in pairs), Arm())
    return SignalVerdict(
        name,
        outcome,
        signal.needed,
        math.exp(min(700.0, worse)),
        worse_bound,
        math.exp(min(700.0, not_worse)),
        not_worse_bound,
        all_stable,
        all_candidate,
    )
