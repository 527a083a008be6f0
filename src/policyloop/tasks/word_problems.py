"""One-step word problems, written on the spot: small numbers, one of + - * /, many wordings. Made for small models.

In: options and a seed. Out: a `Task`. What is held out are (operator, operands), not texts: a held-out problem asks for a sum
that no training text ever asked for, and `meta["cluster"]` names it, because two texts about the same sum are not independent.

Example:
    >>> load(DataSettings(task="word_problems"), seed=0).held_out(seed=1)[0].messages[0].content
    'A train has 6 cars with 9 seats in each car. How many seats are there in total?\\nReply with only the final answer.'
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from policyloop.config import build
from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.framing import Framing
from policyloop.tasks.grading import Verdict
from policyloop.tasks.items import unit
from policyloop.types import Completion, Prompt, settings

HELD_OUT_SHARE = 0.3
ANSWER_FORMAT = "Reply with only the final answer."


@settings
class Options:
    """max_number: the numbers are 2 up to this one (a dividend is their product). operators: any of + - * /.
    size, held_out_size: how many training and held-out prompts are written."""

    max_number: int = 10
    operators: str = "+-*/"
    size: int = 2000
    held_out_size: int = 400

    def __post_init__(self) -> None:
        if self.max_number < 3:
            raise BadInput(f"data.options.max_number = {self.max_number}", "3 or more", "data.options.max_number")
        if not self.operators or set(self.operators) - set("+-*/"):
            raise BadInput(f"data.options.operators = {self.operators!r}", "some of + - * /", "data.options.operators")
        if min(self.size, self.held_out_size) < 1:
            raise BadInput("data.options.size or held_out_size below 1", "1 or more", "data.options")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """What is asked for: `+` and `*` with the smaller number first, `-` with the larger, `/` with the dividend first."""

    operator: str
    a: int
    b: int

    def __str__(self) -> str:
        return f"{self.operator}:{self.a},{self.b}"

    @property
    def result(self) -> int:
        return {"+": self.a + self.b, "-": self.a - self.b, "*": self.a * self.b, "/": self.a // self.b}[self.operator]


@dataclass(frozen=True)
class WordProblems:
    framing: Framing
    verdict: Verdict
    options: Options
    train_keys: tuple[Key, ...]
    held_out_keys: tuple[Key, ...]
    seed: int
    name: str = "word_problems"

    @property
    def correct_needs_stop(self) -> bool:
        return self.verdict.needs_stop

    @property
    def notes(self) -> tuple[str, ...]:
        train, held = len(self.train_keys), len(self.held_out_keys)
        return (f"one-step word problems: {train} (operator, operands) to train on, {held} others held out",)

    def train(self) -> list[Prompt]:
        return self._write(self.train_keys, self.options.size, f"train/{self.seed}")

    def held_out(self, seed: int = 0) -> list[Prompt]:
        """Fresh texts for every seed over the same held-out keys, each key as often as any other (give or take one)."""
        return self._write(self.held_out_keys, self.options.held_out_size, f"held out/{seed}")

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        return self.verdict(prompt, completion)

    def _write(self, keys: Sequence[Key], count: int, seed: str) -> list[Prompt]:
        rng = random.Random(seed)
        prompts: list[Prompt] = []
        while len(prompts) < count:
            for key in rng.sample(keys, len(keys)):
                text, template = write(key, rng)
                meta = {"cluster": str(key), "operator": key.operator, "template": template}
                prompts.append(Prompt.make(self.name, self.framing.content(text), str(key.result), meta))
        return prompts[:count]


def load(settings: DataSettings, seed: int) -> WordProblems:
    options = build(Options, settings.options, "data.options")
    share = HELD_OUT_SHARE if settings.held_out_share is None else settings.held_out_share
    keys = all_keys(options.max_number, options.operators)
    held = tuple(k for k in keys if unit(f"word_problems/{k}") < share)
    train = tuple(k for k in keys if unit(f"word_problems/{k}") >= share)
    if not held or not train:
        raise BadInput(
            f"{len(keys)} (operator, operands) with held_out_share {share} leave one side empty",
            "larger numbers or another share",
            "data",
        )
    verdict = Verdict(
        "math" if settings.grader == "auto" else settings.grader,
        True if settings.correct_needs_stop is None else settings.correct_needs_stop,
    )
    return WordProblems(Framing.of(settings, ANSWER_FORMAT), verdict, options, train, held, seed)


def all_keys(max_number: int, operators: str) -> list[Key]:
    """Every (operator, operands) with numbers from 2: 207 for numbers up to 10."""
    numbers = range(2, max_number + 1)
    pairs = [(a, b) for a in numbers for b in numbers]
    made = {
        "+": [Key("+", a, b) for a, b in pairs if a <= b],
        "-": [Key("-", a, b) for a, b in pairs if a > b],
        "*": [Key("*", a, b) for a, b in pairs if a <= b],
        "/": [Key("/", a * b, b) for a, b in pairs],
    }
    return [key for operator in dict.fromkeys(operators) for key in made[operator]]


def write(key: Key, rng: random.Random) -> tuple[str, str]:
    """A text that asks for `key`, and which template it is. Addends and factors come in either order."""
    template = rng.randrange(len(TEMPLATES[key.operator]))
    a, b = (key.a, key.b) if key.operator in "-/" or rng.random() < 0.5 else (key.b, key.a)
    name, friend = rng.sample(NAMES, 2)
    things, box = rng.choice(THINGS), rng.choice(BOXES)
    text = TEMPLATES[key.operator][template].format(a=a, b=b, name=name, friend=friend, things=things, box=box)
    return text, f"{key.operator}{template}"


NAMES = (
    *("Tom", "Anna", "Ben", "Maria", "Liam", "Sofia", "Omar", "Grace", "Noah", "Emma", "Lucas", "Mia", "Ravi", "Chen", "Aisha"),
    *("Peter", "Olga", "Diego", "Yuki", "Kofi", "Ella", "Jack", "Nina", "Sam", "Leila", "Hugo", "Ivy", "Max", "Zara", "Theo"),
)
THINGS = (
    *("apples", "pencils", "marbles", "stickers", "books", "cookies", "coins", "shells", "stamps", "balloons", "eggs", "candies"),
    *(
        "oranges",
        "cards",
        "buttons",
        "crayons",
        "flowers",
        "beads",
        "stones",
        "toy cars",
        "postcards",
        "muffins",
        "ribbons",
        "nuts",
    ),
)
BOXES = ("boxes", "bags", "baskets", "jars", "trays", "drawers", "bowls", "packs")

TEMPLATES: dict[str, tuple[str, ...]] = {
    "+": (
        "{name} has {a} {things}. {friend} gives {name} {b} more {things}. How many {things} does {name} have now?",
        "There are {a} {things} on the table and {b} {things} on the floor. How many {things} are there in total?",
        "{name} found {a} {things} in the morning and {b} {things} in the afternoon. How many {things} did {name} find?",
        "A shop sold {a} {things} on Monday and {b} {things} on Tuesday. How many {things} did it sell on the two days together?",
        "{name} is {a} years old. {friend} is {b} years older than {name}. How old is {friend}?",
        "{name} bought {a} {things} and {friend} bought {b} {things}. How many {things} did they buy together?",
        "A bus has {a} passengers. At the next stop {b} more people get on. How many passengers are on the bus now?",
        "{name} walked {a} kilometers yesterday and {b} kilometers today. How many kilometers did {name} walk in all?",
        "{friend} has {a} {things}. {name} has {b} more {things} than {friend}. How many {things} does {name} have?",
    ),
    "-": (
        "{name} has {a} {things} and gives {b} of them to {friend}. How many {things} does {name} have left?",
        "There were {a} {things} on the table. {name} took {b} of them away. How many {things} are still on the table?",
        "{name} has {a} {things} and {friend} has {b} {things}. How many more {things} does {name} have than {friend}?",
        "A shop had {a} {things} and sold {b} of them. How many {things} are left in the shop?",
        "{name} is {a} years old. {friend} is {b} years younger than {name}. How old is {friend}?",
        "{name} needs {a} {things} and already has {b}. How many more {things} does {name} need?",
        "A bus has {a} passengers. At the next stop {b} people get off. How many passengers are still on the bus?",
        "{name} had {a} dollars and spent {b} dollars on {things}. How many dollars does {name} have left?",
        "A rope is {a} meters long. {name} cuts off {b} meters. How many meters of rope are left?",
    ),
    "*": (
        "{name} has {a} {box} with {b} {things} in each. How many {things} does {name} have in total?",
        "Each day {name} collects {a} {things}. How many {things} does {name} collect in {b} days?",
        "There are {a} rows of {things} with {b} {things} in each row. How many {things} are there?",
        "{name} buys {a} notebooks. Each notebook costs {b} dollars. How many dollars does {name} pay?",
        "{a} children have {b} {things} each. How many {things} do they have altogether?",
        "A train has {a} cars with {b} seats in each car. How many seats are there in total?",
        "{name} reads {a} pages every day. How many pages does {name} read in {b} days?",
        "A garden has {a} flower beds. {name} plants {b} flowers in each bed. How many flowers does {name} plant?",
        "{friend} earns {a} dollars an hour. How many dollars does {friend} earn in {b} hours?",
    ),
    "/": (
        "{name} shares {a} {things} equally among {b} friends. How many {things} does each friend get?",
        "{name} puts {a} {things} into {b} {box}, the same number in each. How many {things} are in each one?",
        "There are {a} {things} in {b} equal rows. How many {things} are in each row?",
        "{name} packs {a} {things} into {box} of {b} {things} each. How many {box} does {name} need?",
        "{name} paid {a} dollars for {b} tickets of the same price. How many dollars does one ticket cost?",
        "A teacher divides {a} children into {b} teams of equal size. How many children are in each team?",
        "{name} read a book of {a} pages in {b} days, as many pages every day. How many pages did {name} read each day?",
        "A ribbon of {a} meters is cut into {b} equal pieces. How many meters long is each piece?",
        "{friend} earned {a} dollars in {b} hours. How many dollars is that for one hour?",
    ),
}
