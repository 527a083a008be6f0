"""Allocation: which prompts a step samples from, and how many completions each. Two parts of one settings table, `rollout.allocation`.

`prompts` chooses: in turn (null) or by difficulty. `samples` sizes the groups: all alike (null), growing by rounds, or by what another
sample is expected to tell. Both read the raw outcome only (`Score.metric`), never the shaped reward. Random numbers are stateless
(seed, number of the draw), and what was learned is part of the checkpoint.

Example:
    >>> allocator = Allocator(AllocationSettings(prompts=AdaptiveDifficulty()), prompts, seed=0, per_step=8, group_size=8)
    >>> draws = allocator.take(step=0); allocator.learn(groups)   # prompts half right and half wrong come back more often
    >>> Growing().size(round=3)
    42
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np

from policyloop.rollout.cursor import Cursor, Draw
from policyloop.types import Completion, Group, Prompt, settings

HARD, EASY = 0.25, 0.75  # borders of the buckets that are reported


# --- settings ---------------------------------------------------------------------------------------------------------------


@settings
class AdaptiveDifficulty:
    """Prompts that are sometimes right come back more often: weight E[p(1 - p)]^alpha under a Beta posterior of the pass rate p.

    uniform: share of the weight spread evenly. keep: what remains of old evidence when new comes. fresh: share of a step that goes to
    prompts never drawn, while there are any. max_repeats: draws of one prompt per epoch.
    """

    alpha: float = 1.0
    uniform: float = 0.2
    keep: float = 0.5
    fresh: float = 0.5
    max_repeats: int = 4


@settings
class Growing:
    """G = clamp(⌊start · rate^round⌋, floor, cap), with as many prompts as keep the sequences of a step constant (at least one).

    every: a round is an epoch or a step.
    """

    start: int = 32
    rate: float = 1.1
    floor: int = 16
    cap: int = 128
    every: Literal["epoch", "step"] = "epoch"

    def size(self, round: int) -> int:
        # in closed form: rounding does not compound. Beyond the cap the power is not needed (and would overflow)
        steps = math.log(self.cap / self.start) / math.log(self.rate) + 1 if self.rate > 1 and self.cap > self.start else round
        return min(self.cap, max(self.floor, math.floor(self.start * self.rate ** min(round, steps) + 1e-9)))


@settings
class Informative:
    """A group grows in waves until right and wrong answers have both been seen, while another wave is likely to show the other kind.

    first: completions of the first wave. wave: of each later one. cap: most of one group. least: chance that a wave makes the group
    informative, under the posterior of its own answers and those of earlier draws, below which no more is spent on it.
    The step's budget stays prompts × group_size: what nobody is likely to use is saved.
    """

    first: int = 4
    wave: int = 4
    cap: int = 32
    least: float = 0.25


@settings
class AllocationSettings:
    """prompts: which prompts; null = every prompt once an epoch. samples: how many completions each; null = rl_strategy.group_size."""

    slots: ClassVar[Mapping[str, Mapping[str, type]]] = {
        "prompts": {"adaptive_difficulty": AdaptiveDifficulty},
        "samples": {"growing": Growing, "informative": Informative},
    }

    prompts: AdaptiveDifficulty | None = None
    samples: Growing | Informative | None = field(default=None)


# --- which prompts ----------------------------------------------------------------------------------------------------------


class PassRates:
    """Beta posterior of every prompt's pass rate, prior Beta(1, 1), with old evidence fading."""

    def __init__(self, keep: float) -> None:
        self.keep = keep
        self.seen: dict[str, tuple[float, float]] = {}

    def learn(self, groups: Sequence[Group]) -> None:
        for group in groups:
            known = [s.metric for s in group.scores if s.metric is not None]
            if known:
                right = sum(m > 0 for m in known)
                a, b = self.seen.get(group.prompt.id, (0.0, 0.0))
                self.seen[group.prompt.id] = (self.keep * a + right, self.keep * b + len(known) - right)

    def beta(self, prompt_id: str) -> tuple[float, float]:
        a, b = self.seen.get(prompt_id, (0.0, 0.0))
        return 1.0 + a, 1.0 + b

    def state(self) -> dict[str, list[float]]:
        return {key: list(value) for key, value in self.seen.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        self.seen = {key: (value[0], value[1]) for key, value in state.items()}


def chance_of_both(a: float, b: float, right: int, wrong: int, more: int) -> float:
    """That `more` further answers make a group with `right` and `wrong` ones informative, p ~ Beta(a, b) before the group's own."""
    if right and wrong:
        return 1.0
    same, other = (a + right, b) if right or not wrong else (b + wrong, a)
    if not right and not wrong:  # nothing yet: all right, or all wrong
        return 1.0 - _all_same(a, b, more) - _all_same(b, a, more)
    return 1.0 - _all_same(same, other, more)


def _all_same(a: float, b: float, n: int) -> float:
    """E[p^n] for p ~ Beta(a, b)."""
    return math.exp(sum(math.log((a + i) / (a + b + i)) for i in range(n)))


class ByDifficulty:
    """Weighted draws without replacement within a step; unseen prompts in the cursor's order."""

    def __init__(
        self, settings: AdaptiveDifficulty, rates: PassRates, prompts: Sequence[Prompt], seed: int, per_step: int
    ) -> None:
        self.settings, self.rates, self.seed, self.prompts = settings, rates, seed, prompts
        self.cursor = Cursor(prompts, seed, per_step)
        self.by_id = {p.id: p for p in prompts}
        self.position = 0
        self.drawn: Counter[str] = Counter()  # in this epoch
        self.epoch = 0

    def take(self, count: int) -> list[Draw]:
        self._turn()
        draws, fresh = self.peek(count), set(self._unseen(count))
        self.drawn.update(d.prompt.id for d in draws)
        self.cursor.position += sum(d.prompt.id in fresh for d in draws)
        self.position += count
        return draws

    def peek(self, count: int) -> list[Draw]:
        """The next draws if nothing is learned before them."""
        fresh, n = self._unseen(count), len(self.prompts)
        wanted = len(fresh) if not self.rates.seen else min(len(fresh), math.ceil(self.settings.fresh * count))
        chosen = fresh[:wanted]
        chosen += self._weighted(count - len(chosen), set(chosen))
        chosen += [i for i in fresh if i not in chosen][: count - len(chosen)]
        rest = (
            [p.id for p in (*self.prompts[self.position % n :], *self.prompts[: self.position % n])]
            if len(chosen) < count
            else []
        )
        chosen += [i for i in dict.fromkeys(rest) if i not in chosen][: count - len(chosen)]
        return [Draw(f"{i}/{self.epoch}/{self.drawn[i]}", self.by_id[i], self.epoch) for i in chosen[:count]]

    def _unseen(self, count: int) -> list[str]:
        """The next prompts that were never drawn, in the cursor's order; none after its first epoch."""
        left = max(0, len(self.prompts) - self.cursor.position)
        return list(dict.fromkeys(d.prompt.id for d in self.cursor.peek(min(count, left))))

    def _turn(self) -> None:
        """A new epoch every len(prompts) draws: repeats are counted afresh."""
        if self.position // len(self.prompts) != self.epoch:
            self.epoch, self.drawn = self.position // len(self.prompts), Counter()

    def _weighted(self, count: int, taken: set[str]) -> list[str]:
        """Efraimidis and Spirakis: the largest u^(1/w) are a weighted draw without replacement."""
        ids = [i for i in self.rates.seen if i in self.by_id and i not in taken and self.drawn[i] < self.settings.max_repeats]
        if count <= 0 or not ids:
            return []
        weights = self.weights(ids)
        u = np.random.default_rng((self.seed, self.position)).random(len(ids))
        order = np.argsort(-np.log(u) / weights, kind="stable")
        return [ids[k] for k in order[:count]]

    def weights(self, ids: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
        beta = np.array([self.rates.beta(i) for i in ids])
        total = beta.sum(1)
        spread = (beta[:, 0] * beta[:, 1] / (total * (total + 1))) ** self.settings.alpha
        return (1 - self.settings.uniform) * spread / spread.sum() + self.settings.uniform / len(ids)

    def metrics(self) -> dict[str, float]:
        if not self.rates.seen:
            return {}
        means = np.array([a / (a + b) for a, b in map(self.rates.beta, self.rates.seen)])
        weights = self.weights(list(self.rates.seen))
        return {
            "allocation/seen": float(len(means)),
            "allocation/pass_rate": float(means.mean()),
            "allocation/hard": float((means < HARD).mean()),
            "allocation/medium": float(((means >= HARD) & (means <= EASY)).mean()),
            "allocation/easy": float((means > EASY).mean()),
            "allocation/effective": float(weights.sum() ** 2 / (weights**2).sum()),
        }

    def state(self) -> dict[str, Any]:
        return {"cursor": self.cursor.position, "epoch": self.epoch, "drawn": dict(self.drawn)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.cursor.position, self.epoch, self.drawn = int(state["cursor"]), int(state["epoch"]), Counter(state["drawn"])


# --- how many ---------------------------------------------------------------------------------------------------------------

More = Callable[[Sequence[tuple[Draw, int, int]]], list[tuple[Completion, ...]]]  # (draw, completions it has, how many more)
Grade = Callable[[Prompt, Completion], bool | None]


class Allocator:
    """The whole of it: prompts, group sizes, and what was learned. `grade` is the raw verdict, for groups that grow by it."""

    def __init__(
        self,
        settings: AllocationSettings,
        prompts: Sequence[Prompt],
        seed: int,
        per_step: int,
        group_size: int,
        grade: Grade | None = None,
    ) -> None:
        self.settings, self.per_step, self.group_size, self.grade = settings, per_step, group_size, grade
        self.rates = PassRates(settings.prompts.keep if settings.prompts is not None else 0.5)
        chosen = settings.prompts
        self.picker = (
            Cursor(prompts, seed, per_step) if chosen is None else ByDifficulty(chosen, self.rates, prompts, seed, per_step)
        )
        self.saved = 0

    def take(self, step: int) -> tuple[list[Draw], int]:
        """The prompts of this step and the size their groups begin with."""
        sizes = self.settings.samples
        if isinstance(sizes, Growing):
            turn = step if sizes.every == "step" else self.picker.position // len(self.picker.prompts)
            size = sizes.size(turn)
            return self.picker.take(max(1, self.per_step * self.group_size // size)), size
        return self.picker.take(self.per_step), self.group_size if sizes is None else min(sizes.first, self.group_size)

    def grow(self, draws: Sequence[Draw], begun: Sequence[tuple[Completion, ...]], more: More) -> list[tuple[Completion, ...]]:
        """Waves for the groups that are most likely to become informative, until the budget is spent or no group is worth it."""
        sizes, grade, grown = self.settings.samples, self.grade, list(begun)
        if not isinstance(sizes, Informative) or grade is None:
            return grown
        budget = self.per_step * self.group_size - sum(map(len, grown))
        verdicts = [[grade(d.prompt, c) for c in g] for d, g in zip(draws, grown, strict=True)]
        while budget > 0:
            wave = self._wave(draws, verdicts, [len(g) for g in grown], sizes, budget)
            if not wave:
                break
            for i, fresh in zip(wave, more([(draws[i], len(grown[i]), n) for i, n in wave.items()]), strict=True):
                grown[i] += fresh
                verdicts[i] += [grade(draws[i].prompt, c) for c in fresh]
                budget -= len(fresh)
        self.saved = budget
        return grown

    def _wave(
        self, draws: Sequence[Draw], verdicts: Sequence[Sequence[bool | None]], have: Sequence[int], s: Informative, budget: int
    ) -> dict[int, int]:
        """Group -> completions of the next wave, the likeliest first."""
        chances = []
        for i, seen in enumerate(verdicts):
            right, wrong, more = seen.count(True), seen.count(False), min(s.wave, s.cap - have[i])
            if more > 0 and not (right and wrong) and (right or wrong):
                chance = chance_of_both(*self.rates.beta(draws[i].prompt.id), right, wrong, more)
                chances.append((-chance, i, more))
        wave: dict[int, int] = {}
        for lack, i, more in sorted(chances):
            if -lack >= s.least and budget > 0:
                wave[i] = min(more, budget)
                budget -= wave[i]
        return dict(sorted(wave.items()))

    def learn(self, groups: Sequence[Group]) -> None:
        if self.settings.prompts is not None or isinstance(self.settings.samples, Informative):
            self.rates.learn(groups)

    def metrics(self) -> dict[str, float]:
        found = self.picker.metrics() if isinstance(self.picker, ByDifficulty) else {}
        return found | ({"allocation/saved": float(self.saved)} if isinstance(self.settings.samples, Informative) else {})

    def state(self) -> dict[str, Any]:
        picker = self.picker.state() if isinstance(self.picker, ByDifficulty) else {}
        return {"position": self.picker.position, "rates": self.rates.state(), "picker": picker}

    def load(self, state: Mapping[str, Any]) -> None:
        self.picker.position = int(state["position"])
        self.rates.load(state["rates"])
        if isinstance(self.picker, ByDifficulty):
            self.picker.load(state["picker"])
