"""Chat with a scripted engine: what is shown, what is remembered, what is said about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policyloop.engine.scripted import ScriptedEngine
from policyloop.errors import BadInput
from policyloop.evaluation import chat
from policyloop.evaluation.chat import Talk, converse
from policyloop.evaluation.model import OpenModel
from policyloop.types import Prompt, SamplingParams


class Renderer:
    """Says what it was asked to render; every prompt longer than `room` messages is too long."""

    def __init__(self, chat: bool = True, room: int = 99) -> None:
        self.chat, self.room = chat, room
        self.seen: list[Prompt] = []

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None) -> tuple[int, ...]:
        if len(prompt.messages or ()) > self.room:
            raise BadInput("the prompt has 9 tokens", "at most 4", "the prompt")
        self.seen.append(prompt)
        return (1, 2)


def model(answers: list[list[int]], renderer: Renderer | None = None, version: str = "m#1") -> OpenModel:
    engine = ScriptedEngine(answers, version=version)
    return OpenModel("m", Path("m"), engine, renderer or Renderer(), version, "float32", 8)  # type: ignore[arg-type]


PARAMS = SamplingParams(max_new_tokens=3, temperature=0.0)


def test_answers_appear_piece_by_piece_and_are_remembered() -> None:
    """The scripted engine says ` 7 8`: a token at a time, without the blank in front."""
    renderer = Renderer()
    talk, shown = Talk(model([[7, 8]], renderer), PARAMS, "be brief"), list[str]()
    remark = talk.ask("hello", shown.append)
    assert "".join(shown) == "7 8" and shown[0] == "7" and remark.startswith("2 tokens in ") and remark.endswith("stop")
    talk.ask("again", shown.append)
    said = [(m.role, m.content) for m in renderer.seen[-1].messages or ()]
    assert said == [("system", "be brief"), ("user", "hello"), ("assistant", "7 8"), ("user", "again")]


def test_a_model_without_a_chat_template_gets_the_line_itself() -> None:
    renderer = Renderer(chat=False)
    Talk(model([[7]], renderer), PARAMS, None).ask("2+3=", lambda text: None)
    assert renderer.seen[0].text == "2+3=" and renderer.seen[0].messages is None


def test_a_cut_off_answer_is_called_that() -> None:
    assert (
        Talk(model([[7] * 9]), PARAMS, None).ask("x", lambda text: None) == "cut off after 3 tokens; --max-new-tokens allows more"
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, OpenModel]:
    models = {"a": model([[7]], version="a#1"), "b": model([[8, 9, 9, 9]], Renderer(room=1), version="b#2")}

    @contextmanager
    def open_one(name: str, template: str | None = None) -> Iterator[OpenModel]:
        yield models[name]

    monkeypatch.setattr(chat, "open_model", open_one)
    return models


def test_two_models_answer_one_under_the_other(opened: dict[str, OpenModel], capsys: pytest.CaptureFixture[str]) -> None:
    converse(["a", "b"], PARAMS, "hello", None, None)
    out = capsys.readouterr()
    assert out.out == "[a#1] 7\n[b#2] 8 9 9\n" and "cut off after 3 tokens" in out.err


def test_lines_until_an_empty_one_and_a_question_too_long_does_not_end_the_talk(
    opened: dict[str, OpenModel], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["one\n", "two\n", "\n", "never\n"])
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"isatty": lambda self: False, "readline": lambda self: next(lines)})())
    converse(["a", "b"], PARAMS, None, None, None)
    out = capsys.readouterr()
    assert out.out == "[a#1] 7\n[b#2] 8 9 9\n[a#1] 7\n[b#2] \n" and "the prompt has 9 tokens" in out.err
    assert next(lines) == "never\n"


def test_one_question_that_does_not_fit_is_an_error(opened: dict[str, OpenModel]) -> None:
    with pytest.raises(BadInput, match="the prompt has 9 tokens"):
        converse(["b"], PARAMS, "hello", "a system message too many", None)
