"""Right or wrong: one completion against one gold. Correct = the right answer (and stopped by itself, where that is asked for).

Example:
    >>> words_match("The capital is easy.\\nThe answer is **Paris**.", "paris")
    True
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from policyloop.tasks.overlap import normalise
from policyloop.types import Completion, Prompt

LONGEST = 4_000  # characters of the end of an answer that may hold a final answer in words


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a task judges. `needs_stop`: an answer cut off by the token limit is wrong even if it reads right."""

    grader: Literal["math", "text"]
    needs_stop: bool = False

    def __call__(self, prompt: Prompt, completion: Completion) -> bool | None:
        right = None if prompt.target is None else self.matches(completion.text, prompt.target)
        return right and (completion.finish_reason == "stop" or not self.needs_stop)

    def matches(self, text: str, gold: str) -> bool | None:
        """None: the gold cannot be judged."""
        if self.grader == "text":
            return words_match(text, gold)
        from policyloop.rewards.math import grade

        return grade(text, gold)


def final_answer(text: str, lines: int = 1) -> str:
    """What a text puts forward: its last slot (`<answer>`, `\\boxed{}`, `####`, `answer is`), else its last lines."""
    from policyloop.rewards.answer_slot import scope, slots

    text = scope(text)[-LONGEST:]
    found = slots(text)
    return found[-1] if found else "\n".join([line for line in text.splitlines() if line.strip()][-lines:]).strip()


def words_match(text: str, gold: str) -> bool | None:
    """Equal words: case, width, blanks, Markdown and punctuation at the ends do not count. None for an empty gold."""
    from policyloop.rewards.answer_value import unwrap

    expected = _bare(gold)
    return _bare(unwrap(final_answer(text))) == expected if expected else None


def _bare(text: str) -> str:
    return normalise(text).strip("*_`'\"“”‘’.,;:!?()[]。，！？")


def readable(golds: Iterable[str | None]) -> list[bool]:
    """Which golds the mathematical grader can judge (a gold graded against itself)."""
    from policyloop.rewards.math import grade

    return [gold is not None and grade(gold, gold) is not None for gold in golds]
