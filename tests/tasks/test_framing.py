"""One place decides how a question is asked."""

import pytest

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.framing import Framing
from policyloop.types import Message


def test_a_question_becomes_messages():
    framing = Framing.of(DataSettings(system="Be brief.", prompt_template="Solve: {prompt}", answer_format="Only the number."))
    assert framing.content("2+3?") == (Message("system", "Be brief."), Message("user", "Solve: 2+3?\nOnly the number."))


def test_the_task_offers_an_answer_format_and_the_user_may_refuse_it():
    assert Framing.of(DataSettings(), "Only the number.").content("a") == (Message("user", "a\nOnly the number."),)
    assert Framing.of(DataSettings(answer_format=""), "Only the number.").content("a") == (Message("user", "a"),)


def test_text_stays_text():
    assert Framing.of(DataSettings(prompt_as="text")).content("a") == "a"
    assert Framing.of(DataSettings(prompt_as="text", prompt_template="Q: {prompt}\nA:")).content("a") == "Q: a\nA:"


def test_message_lists_keep_their_turns():
    framing = Framing(system="S", answer_format="F")
    turns = (Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    assert framing.content(turns) == (Message("system", "S"), *turns[:2], Message("user", "c\nF"))
    own = (Message("system", "own"), Message("user", "a"))
    assert framing.content(own) == (own[0], Message("user", "a\nF"))
    assert framing.content("a", system="row")[0] == Message("system", "row")


def test_braces_in_questions_and_templates_are_safe():
    framing = Framing(prompt_template="{topic}: {prompt} Write \\boxed{{x}} or \\boxed{}.", prompt_as="text")
    assert (
        framing.content("{prompt} {topic} {a}", {"topic": "sets"}) == "sets: {prompt} {topic} {a} Write \\boxed{x} or \\boxed{}."
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (DataSettings(prompt_template="Solve it."), r"has no \{prompt\}"),
        (DataSettings(prompt_as="text", system="S"), "plain text"),
    ],
)
def test_impossible_framings(settings, said):
    with pytest.raises(BadInput, match=said):
        Framing.of(settings)


def test_a_template_cannot_ask_for_the_answer():
    with pytest.raises(BadInput, match=r"asks for \{answer\}: allowed is level, prompt"):
        Framing(prompt_template="{prompt} {answer}").content("a", {"level": 1})
