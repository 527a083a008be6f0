"""How often the canary is wrong: false rollbacks of a candidate as good as the stable version, and regressions it lets through.

Simulates whole releases (the shipped state machine and statistics, every look counted): sessions arrive, each belongs to an arm by the share of
the step, each gives one unit outcome 0/1; after every batch the controller looks. Seeded; prints the table of docs/release.md.

Example:
    $ python benchmarks/canary_statistics.py --releases 400
"""

from __future__ import annotations

import argparse
import collections
import time

import numpy as np

from policyloop.gateway import ReleaseSettings, SignalSettings, SignalsSettings
from policyloop.gateway.release import Seen, begin, routing, tick
from policyloop.gateway.verdict import judge
from policyloop.stats import Arm
from policyloop.store.log import After


def settings(margin: float) -> ReleaseSettings:
    signals = SignalsSettings(errors=None, slow=None, long=None, verifier=None, feedback=SignalSettings(margin=margin))
    return ReleaseSettings(signals=signals, step_min_s=0, watch_s=0)


def release(
    stable: float, candidate: float, margin: float, per_step: int, batch: int, rng: np.random.Generator
) -> tuple[str, int]:
    """One release of at most `per_step` sessions a step, looked at every `batch`. -> (how it ended, sessions it took)."""
    rules, after, arms = settings(margin), After(aliases={"stable": 1}), collections.defaultdict(Arm)
    after = begin(after, 2, rules, 0.0, by="sim", id="r").after
    sessions = in_step = 0
    while after.release["state"] != "idle":
        seen = Seen(1, 1, verdict=judge(arms, 1, 2, rules, share=routing(after).share))
        now = after.release["deadline"] if in_step >= per_step else after.release["since"]
        move = tick(after, seen, rules, now)
        if move is not None:
            if move.type == "rolled_back":
                return ("undecided" if "undecided" in move.reason else "rolled back"), sessions
            if move.type == "promoted":
                return "promoted", sessions
            after, in_step = move.after, 0
            continue
        share, stratum = routing(after).share, routing(after).stratum
        n = int(rng.binomial(batch, share))
        for version, count, p in ((1, batch - n, stable), (2, n, candidate)):
            key = (stratum, version, "feedback")
            arms[key] = arms[key] + Arm(count, float(rng.binomial(count, p)))
        sessions, in_step = sessions + batch, in_step + batch
    return "released", sessions


CASES = [  # stable, candidate, margin
    *((0.9, 0.9, 0.05), (0.9, 0.88, 0.05), (0.9, 0.85, 0.05), (0.9, 0.8, 0.05), (0.9, 0.6, 0.05)),
    *((0.5, 0.5, 0.1), (0.5, 0.3, 0.1), (0.98, 0.98, 0.02), (0.98, 0.93, 0.02), (0.98, 0.5, 0.02)),
]


def table(releases: int, per_step: int, batch: int, seed: int) -> list[tuple[str, ...]]:
    rows = []
    for stable, candidate, margin in CASES:
        rng = np.random.default_rng(seed)
        ends = [release(stable, candidate, margin, per_step, batch, rng) for _ in range(releases)]
        count = collections.Counter(end for end, _ in ends)
        took = sorted(n for _, n in ends)[len(ends) // 2]
        shares = [f"{count[name] / releases:.3f}" for name in ("promoted", "rolled back", "undecided")]
        rows.append((f"{stable:g}", f"{candidate:g}", f"{margin:g}", *shares, f"{took:,}"))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--releases", type=int, default=400)
    parser.add_argument("--per-step", type=int, default=10_000, help="sessions until a step's deadline")
    parser.add_argument("--batch", type=int, default=200, help="sessions between two looks")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began = time.perf_counter()
    print(
        "| stable | candidate | margin | promoted | rolled back: worse | rolled back: undecided | median sessions |\n|---|---|---|---|---|---|---|"
    )
    for row in table(args.releases, args.per_step, args.batch, args.seed):
        print("| " + " | ".join(row) + " |")
    print(
        f"{args.releases} releases a row, at most {args.per_step:,} sessions a step, a look every {args.batch}, seed {args.seed}; {time.perf_counter() - began:.0f} s"
    )
