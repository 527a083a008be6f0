"""Words as answers, and what `correct` means."""

import time

import pytest

from policyloop.tasks.grading import Verdict, final_answer, words_match
from policyloop.types import Completion, FinishReason, Prompt


def completion(text: str, finish_reason: FinishReason = "stop") -> Completion:
    return Completion((1,), (2,), (-0.1,), finish_reason, "run#0", text)


@pytest.mark.parametrize(
    ("text", "gold", "expected"),
    [
        ("Paris", "paris", True),
        ("It is easy.\nThe answer is **Paris**.", "Paris", True),
        ("Answer: (B)", "B", True),
        ("<answer>Paris</answer> or Rome", "Paris", True),
        ("The answer is Rome. No:\nAnswer: Paris", "Paris", True),
        ("#### new  york", "New York", True),
        ("\\boxed{A}", "A", True),
        ("I think of Paris and Rome", "Paris", False),
        ("<think>Paris</think>Rome", "Paris", False),
        ("<think>the answer is Paris", "Paris", False),
        ("", "Paris", False),
        ("Paris", "  ", None),
        ("答案是巴黎\n巴黎。", "巴黎", True),
    ],
)
def test_words(text, gold, expected):
    assert words_match(text, gold) is expected


def test_hostile_text_takes_no_time():
    start = time.process_time()
    for text in ("<answer>" * 100_000, "answer is " * 100_000, "\\boxed{" * 100_000, "#### " * 100_000, "\n" * 100_000):
        final_answer(text)
    assert time.process_time() - start < 2


def test_correct_may_ask_for_a_stop():
    prompt = Prompt.make("t", "q", "Paris")
    assert Verdict("text")(prompt, completion("Paris", "length")) is True
    assert Verdict("text", needs_stop=True)(prompt, completion("Paris", "length")) is False
    assert Verdict("text", needs_stop=True)(prompt, completion("Paris")) is True
    assert Verdict("text", needs_stop=True)(Prompt.make("t", "q"), completion("Paris", "length")) is None
