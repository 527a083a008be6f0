"""The tiny task of the tiny model: `9-3+2-6=`, every intermediate value one digit, the answer ends in `#d`. Trains in seconds.

In: options and a seed. Out: a `Task` with plain-text prompts, split by the hash of the expression, and demonstrations for a
supervised start: half restate and guess, a tenth compute concisely, the rest compute at length; a few steps slip.

Example:
    >>> task = load(DataSettings(task="tiny_arithmetic"), seed=0)
    >>> task.train()[0].text, task.train()[0].target
    ('4+3-6+1=', '2')
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from policyloop.config import build
from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.items import shuffled, unit
from policyloop.types import Completion, Prompt, settings

HELD_OUT_SHARE = 0.2


@settings
class Options:
    """terms: numbers in an expression. demonstrations: train on that many worked answers instead of bare prompts (0 = bare).
    pairs: train on that many (right, wrong) pairs instead; held-out prompts then have two sides as well.
    restate, concise: shares of the demonstrations that restate and guess, compute concisely. slip: chance of a wrong step."""

    terms: int = 4
    demonstrations: int = 0
    pairs: int = 0
    restate: float = 0.5
    concise: float = 0.1
    slip: float = 0.03

    def __post_init__(self) -> None:
        if not 2 <= self.terms <= 5:
            raise BadInput(f"data.options.terms = {self.terms}", "2 to 5", "data.options.terms")
        if self.pairs and self.demonstrations:
            raise BadInput("data.options has demonstrations and pairs", "one of the two", "data.options")


@dataclass(frozen=True)
class TinyArithmetic:
    options: Options
    correct_needs_stop: bool
    train_expressions: tuple[str, ...]
    held_out_expressions: tuple[str, ...]
    seed: int
    name: str = "tiny_arithmetic"

    @property
    def notes(self) -> tuple[str, ...]:
        train, held = len(self.train_expressions), len(self.held_out_expressions)
        return (f"tiny arithmetic: {train} expressions to train on, {held} held out",)

    def train(self) -> list[Prompt]:
        """Bare prompts, or worked ones (`meta["demonstration"]`) for a supervised start."""
        if self.options.pairs:
            rng = random.Random(f"pairs/{self.seed}")
            return [self._pair(rng.choice(self.train_expressions), rng) for _ in range(self.options.pairs)]
        if not self.options.demonstrations:
            return shuffled([self._prompt(e) for e in self.train_expressions], self.seed, lambda p: p.id)
        return [
            Prompt.make(self.name, prompt.text or "", prompt.target, {"demonstration": answer})
            for prompt, answer in self.demonstrations(self.options.demonstrations, self.seed)
        ]

    def held_out(self, seed: int = 0) -> list[Prompt]:
        """All held-out expressions, in an order drawn from the seed."""
        if self.options.pairs:
            rng = random.Random(f"held-out pairs/{seed}")
            return shuffled([self._pair(e, rng) for e in self.held_out_expressions], seed, lambda p: p.id)
        return shuffled([self._prompt(e) for e in self.held_out_expressions], seed, lambda p: p.id)

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        """Right = the text ends in `#` and the digit. Exact, because the form is part of the task."""
        stopped = completion.finish_reason == "stop" or not self.correct_needs_stop
        return stopped and completion.text.strip().endswith(f"#{prompt.target}")

    def demonstrations(self, n: int, seed: int) -> Iterator[tuple[Prompt, str]]:
        """`n` training prompts with an answer each, in the mix that `options` say."""
        rng, o = random.Random(f"demonstrations/{seed}"), self.options
        for _ in range(n):
            expression = rng.choice(self.train_expressions)
            kind = rng.random()
            if kind < o.restate:
                answer = restate(expression)
            else:
                answer = work(expression, rng, o.slip, concise=kind < o.restate + o.concise)
            yield self._prompt(expression), answer

    def _pair(self, expression: str, rng: random.Random) -> Prompt:
        """A right working and a wrong one of the same style: a slipped step, or (a third of them) a guess."""
        concise, total = rng.random() < 0.5, value(expression)
        right, wrong = work(expression, rng, 0.0, concise), ""
        while not wrong or wrong.endswith(f"#{total}"):
            guess = rng.choice([d for d in range(10) if d != total])
            wrong = (
                f"check {expression};so {expression}={guess}#{guess}"
                if rng.random() < 1 / 3
                else work(expression, rng, 0.4, concise)
            )
        meta = {"chosen": right, "rejected": wrong, "demonstration": right}
        return Prompt.make(self.name, f"{expression}=", str(total), meta)

    def _prompt(self, expression: str) -> Prompt:
        return Prompt.make(self.name, f"{expression}=", str(value(expression)))


def load(settings: DataSettings, seed: int) -> TinyArithmetic:
    options = build(Options, settings.options, "data.options")
    if settings.system or settings.prompt_template or settings.answer_format or settings.grader != "auto":
        raise BadInput(
            "data.system, prompt_template, answer_format or grader with tiny_arithmetic",
            "none of them (its model knows 23 words)",
            "data",
        )
    share = HELD_OUT_SHARE if settings.held_out_share is None else settings.held_out_share
    made = list(expressions(options.terms))
    held = tuple(e for e in made if unit(f"tiny_arithmetic/{e}") < share)
    train = tuple(e for e in made if unit(f"tiny_arithmetic/{e}") >= share)
    needs_stop = True if settings.correct_needs_stop is None else settings.correct_needs_stop
    return TinyArithmetic(options, needs_stop, train, held, seed)


def expressions(terms: int) -> Iterator[str]:
    """Every sum and difference of `terms` digits (the later ones 1 to 9) whose intermediate values stay within 0 to 9."""

    def extend(expression: str, total: int, left: int) -> Iterator[str]:
        if not left:
            yield expression
            return
        for digit in range(1, 10):
            if total + digit <= 9:
                yield from extend(f"{expression}+{digit}", total + digit, left - 1)
            if total - digit >= 0:
                yield from extend(f"{expression}-{digit}", total - digit, left - 1)

    for first in range(10):
        yield from extend(str(first), first, terms - 1)


def value(expression: str) -> int:
    return int(expression[0]) + sum(int(expression[i : i + 2]) for i in range(1, len(expression), 2))


def restate(expression: str) -> str:
    """`check 9-3+2-6;so 9-3+2-6=2#2`: no working, so a model that imitates it has to guess."""
    return f"check {expression};so {expression}={value(expression)}#{value(expression)}"


def work(expression: str, rng: random.Random, slip: float, concise: bool) -> str:
    """`9-3=6;6+2=8;8-6=2#2`, or each step said twice. A slipped step goes on from its wrong value, which still fits."""
    total, steps = int(expression[0]), []
    for i in range(1, len(expression), 2):
        step, rest = f"{total}{expression[i : i + 2]}", expression[i + 2 :]
        total = value(step)
        wrong = [v for v in range(10) if v != total and _fits(v, rest)]
        if wrong and rng.random() < slip:
            total = rng.choice(wrong)
        steps.append(f"{step}={total}" if concise else f"so {step} is {step}={total}")
    return f"{';'.join(steps)}#{total}"


def _fits(start: int, rest: str) -> bool:
    """Whether every intermediate value from `start` on stays a digit."""
    totals = [start + sum(int(rest[i : i + 2]) for i in range(0, upto, 2)) for upto in range(2, len(rest) + 1, 2)]
    return all(0 <= t <= 9 for t in totals)
