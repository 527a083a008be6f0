"""Chat in the terminal: one model, or two side by side on the same question.

Example: `policyloop chat smollm2-135m-instruct --versus runs/word-problems-grpo --prompt "What is 3 + 4?"`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from policyloop.engine import Request
from policyloop.evaluation.model import OpenModel, open_model
from policyloop.types import Message, Prompt, SamplingParams


def converse(
    names: Sequence[str], params: SamplingParams, question: str | None, system: str | None, template: str | None
) -> None:
    """Each model keeps its own history. Without `question`, lines are read until an empty one."""
    models = [open_model(name, template=template) for name in names]
    start = (Message("system", system),) if system else ()
    histories: list[tuple[Message, ...]] = [start for _ in models]
    asked = [question] if question is not None else _lines()
    for line in asked:
        for i, model in enumerate(models):
            histories[i] = (*histories[i], Message("user", line))
            answer = ask(model, histories[i], params)
            histories[i] = (*histories[i], Message("assistant", answer))
            label = f"[{model.version}] " if len(models) > 1 else ""
            print(f"{label}{answer}", flush=True)
    for model in models:
        model.engine.close()


def ask(model: OpenModel, history: Sequence[Message], params: SamplingParams) -> str:
    """One answer. A model without a chat template gets the last message as plain text."""
    prompt = Prompt.make("chat", list(history) if model.renderer.chat else history[-1].content)
    (completion,) = model.engine.run([Request(f"chat/{len(history)}", model.renderer.prompt_ids(prompt), params)])
    return completion.text.strip()


def _lines() -> Iterator[str]:
    """Lines from the terminal; an empty line, the end of input or Ctrl-C ends the talk."""
    try:
        while line := (input("> ") if sys.stdin.isatty() else sys.stdin.readline()).strip():
            yield line
    except (EOFError, KeyboardInterrupt):
        print()
