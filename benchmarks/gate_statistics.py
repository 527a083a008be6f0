"""How often the gate is wrong: SHIP for a candidate as good as the stable version, and no SHIP for one that is five points better.

Simulates gates with the shipped rules. Item i has a difficulty; each version solves it with a probability of its own around that, so that answers
to one item go together as they do in practice. Seeded; prints the table of docs/gate.md.

Example:
    $ python benchmarks/gate_statistics.py --gates 200
"""

from __future__ import annotations

import argparse
import collections
import time

import numpy as np

from policyloop.evaluation import GateSettings
from policyloop.evaluation.evaluate import Evaluation, Item
from policyloop.evaluation.gate import gate

CONDITIONS = {"task": "t", "decoding": {"max_new_tokens": 64, "n": 1}}


def pair(n: int, gain: float, alike: float, rng: np.random.Generator) -> tuple[Evaluation, Evaluation]:
    """Stable at 0.6, candidate at 0.6 + gain. `alike`: share of items on which nothing but the gain tells them apart (greedy decoding of a
    lightly trained model); on the others each answer is a draw of its own."""
    draw = rng.random(n)
    own = np.where(rng.random(n) < alike, draw, rng.random(n))
    lengths = rng.integers(20, 60, n), rng.integers(20, 60, n)

    def side(name: str, right: np.ndarray, length: np.ndarray) -> Evaluation:
        items = tuple(
            Item(f"p{i}", f"p{i}", 0, bool(r), int(k), False, "x") for i, (r, k) in enumerate(zip(right, length, strict=True))
        )
        return Evaluation(name, "t", CONDITIONS, items)

    return side("stable", draw < 0.6, lengths[0]), side("candidate", own < 0.6 + gain, lengths[1])


def verdicts(gates: int, n: int, gain: float, alike: float, rules: GateSettings, seed: int) -> collections.Counter[str]:
    rng = np.random.default_rng([seed, n, round(1000 * (1 + gain)), round(100 * alike)])
    return collections.Counter(gate(*pair(n, gain, alike, rng), rules).verdict for _ in range(gates))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gates", type=int, default=200)
    parser.add_argument("--items", type=int, nargs="+", default=[200, 400, 800, 1319])
    parser.add_argument("--require", choices=("better", "not_worse"), default="better")
    parser.add_argument("--alike", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, rules = time.monotonic(), GateSettings(require=options.require)
    print(
        "| Items | Equal: SHIP | Equal: HOLD | +5 points: SHIP | +5 points: HOLD | -5 points: SHIP |\n|---|---|---|---|---|---|"
    )
    for n in options.items:
        equal, better, worse = (
            verdicts(options.gates, n, gain, options.alike, rules, options.seed) for gain in (0.0, 0.05, -0.05)
        )
        shares = [equal["SHIP"], equal["HOLD"], better["SHIP"], better["HOLD"], worse["SHIP"]]
        print(f"| {n} | " + " | ".join(f"{100 * x / options.gates:.1f} %" for x in shares) + " |", flush=True)
    print(f"{options.gates} gates each, {100 * options.alike:.0f} % of the items alike, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
