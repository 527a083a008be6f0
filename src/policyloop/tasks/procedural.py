"""Any of reasoning-gym's generators, seeded, judged by its own verifier.

In: `options.name` (chain_sum, gcd, ...), its config and a seed. Out: a `Task`. Held out by the hash of the question, whatever
the seed: small generators repeat themselves, so different seeds alone would put the same questions on both sides.

Example:
    >>> load(DataSettings(task="procedural", options={"name": "chain_sum"}), seed=0).held_out()[0].target
    '-4'
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from policyloop.config import build
from policyloop.errors import BadInput, NotFound
from policyloop.tasks import DataSettings
from policyloop.tasks.framing import Framing
from policyloop.tasks.grading import Verdict, final_answer
from policyloop.tasks.items import unit
from policyloop.tasks.overlap import normalise
from policyloop.types import Completion, Prompt, settings

HELD_OUT_SHARE = 0.2
ANSWER_FORMAT = "Reply with only the final answer."
CHUNK, MOST_CHUNKS = 500, 40


@settings
class Options:
    """name: a generator of reasoning-gym. config: its own settings (`{min_digits: 1}`). size, held_out_size: prompts."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    size: int = 1000
    held_out_size: int = 200


@dataclass(frozen=True)
class Procedural:
    """`outcome` is the verifier's score in [0, 1]; `grade` calls the full score right."""

    options: Options
    framing: Framing
    share: float
    needs_stop: bool
    compare: Verdict | None
    seed: int
    dataset: Any = field(repr=False, compare=False)

    name: ClassVar[str] = "procedural"

    @property
    def correct_needs_stop(self) -> bool:
        return self.needs_stop

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"reasoning-gym {self.options.name}: {self.share:.0%} of all questions are held out by hash",)

    def train(self) -> list[Prompt]:
        return self._draw(self.options.size, f"train/{self.seed}", held_out=False)

    def held_out(self, seed: int = 0) -> list[Prompt]:
        """Fresh questions for every seed, each once; fewer than asked for when the generator has no more."""
        return self._draw(self.options.held_out_size, f"held out/{seed}", held_out=True)

    def outcome(self, prompt: Prompt, completion: Completion) -> float:
        """The verifier's score of the final answer, as it stands or without LaTeX and Markdown around it."""
        from policyloop.rewards.answer_value import unwrap

        if self.needs_stop and completion.finish_reason != "stop":
            return 0.0
        answer = final_answer(completion.text, lines=1 + (prompt.target or "").count("\n"))
        entry = {"question": prompt.meta["question"], "answer": prompt.target, "metadata": prompt.meta["metadata"]}
        return max(self._score(answer, entry), self._score(unwrap(answer), entry))

    def _score(self, answer: str, entry: dict[str, Any]) -> float:
        try:
            return float(self.dataset.score_answer(answer, entry))
        except Exception:  # the library's verifiers trip over odd answers, each in its own way: a wrong answer
            return 0.0

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        if self.compare is not None:
            return self.compare(prompt, completion)
        return self.outcome(prompt, completion) >= 1.0

    def _draw(self, count: int, seed: str, held_out: bool) -> list[Prompt]:
        found: list[Prompt] = []
        seen: set[str] = set()
        for chunk in range(MOST_CHUNKS):
            dataset = create(self.options, CHUNK, int(unit(f"{seed}/{chunk}") * 2**31))
            for i in range(CHUNK):
                entry = dataset[i]
                key = normalise(entry["question"])
                if (unit(f"procedural/{key}") < self.share) == held_out and not (held_out and key in seen):
                    seen.add(key)
                    found.append(self._prompt(entry))
                if len(found) == count:
                    return found
        if not found:
            side = "held-out" if held_out else "training"
            raise BadInput(
                f"{self.options.name} makes no {side} questions with this config", "a config with more questions", "data.options"
            )
        return found

    def _prompt(self, entry: Mapping[str, Any]) -> Prompt:
        meta = {"question": entry["question"], "metadata": entry["metadata"], "dataset": self.options.name}
        return Prompt.make(self.name, self.framing.content(entry["question"]), str(entry["answer"]), meta)


def load(settings: DataSettings, seed: int) -> Procedural:
    options = build(Options, settings.options, "data.options")
    needs_stop = bool(settings.correct_needs_stop)
    return Procedural(
        options=options,
        framing=Framing.of(settings, ANSWER_FORMAT),
        share=HELD_OUT_SHARE if settings.held_out_share is None else settings.held_out_share,
        needs_stop=needs_stop,
        compare=None if settings.grader == "auto" else Verdict(settings.grader, needs_stop),
        seed=seed,
        dataset=create(options, 1, 0),
    )


def create(options: Options, size: int, seed: int) -> Any:
    """reasoning-gym's data set, its complaints turned into ours."""
    from reasoning_gym.factory import DATASETS, create_dataset

    if options.name not in DATASETS:
        near = difflib.get_close_matches(options.name, DATASETS, 3) or sorted(DATASETS)[:6]
        raise NotFound(
            f"reasoning-gym has no {options.name!r}",
            f"one of its {len(DATASETS)} names, such as {', '.join(near)}",
            "data.options.name",
        )
    known = [f.name for f in dataclasses.fields(DATASETS[options.name][1]) if f.name not in ("size", "seed")]
    if unknown := set(options.config) - set(known):
        raise BadInput(f"{options.name} has no setting {', '.join(sorted(unknown))}", ", ".join(known), "data.options.config")
    try:
        return create_dataset(options.name, size=size, seed=seed, **options.config)
    except (AssertionError, TypeError, ValueError) as error:
        raise BadInput(f"{options.name} refuses its config ({error})", "its own rules", "data.options.config") from None
