"""Chat in the terminal: one model, or several asked the same question. On a terminal the answer appears as it is made.

In: MODEL names and, for one question, its text; else lines are read until an empty one. Out: answers on stdout, remarks on stderr.

Example: `policyloop chat smollm2-135m-instruct --versus run://word-problems-grpo --prompt "What is 3 + 4?"`
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from policyloop.engine import Request
from policyloop.errors import Problem
from policyloop.evaluation.model import OpenModel, open_model
from policyloop.types import FinishReason, Message, Prompt, SamplingParams

Show = Callable[[str], None]


def converse(
    names: Sequence[str], params: SamplingParams, question: str | None, system: str | None, template: str | None
) -> None:
    """Each model keeps its own history. A question that does not fit is said and forgotten, the talk goes on."""
    live = sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        talks = [Talk(stack.enter_context(open_model(name, template=template)), params, system) for name in names]
        for line in [question] if question is not None else _lines():
            for talk in talks:
                label = f"[{talk.model.version}] " if len(talks) > 1 else ""
                print(label, end="", flush=True)
                try:
                    remark = talk.ask(line, lambda text: print(text, end="", flush=True))
                except Problem as problem:
                    if question is not None:
                        raise
                    remark = str(problem)
                finally:
                    print(flush=True)
                if live or "tokens in" not in remark:
                    print(f"({remark})", file=sys.stderr, flush=True)


class Talk:
    """One model and what was said so far."""

    def __init__(self, model: OpenModel, params: SamplingParams, system: str | None) -> None:
        self.model, self.params = model, params
        self.history: tuple[Message, ...] = (Message("system", system),) if system else ()

    def ask(self, line: str, show: Show) -> str:
        """Shows the answer piece by piece and remembers it; returns a remark on it. A model without a chat template gets the bare line."""
        asked = (*self.history, Message("user", line))
        prompt = Prompt.make("chat", asked if self.model.renderer.chat else line)
        request = Request(f"chat/{len(asked)}", self.model.renderer.prompt_ids(prompt), self.params)
        began = time.monotonic()
        answer, tokens, reason = asyncio.run(_streamed(self.model, request, show))
        self.history = (*asked, Message("assistant", answer))
        if reason == "length":
            return f"cut off after {tokens} tokens; --max-new-tokens allows more"
        return f"{tokens} tokens in {time.monotonic() - began:.1f} s, {reason}"


async def _streamed(model: OpenModel, request: Request, show: Show) -> tuple[str, int, FinishReason | None]:
    """The answer without blanks at its ends (they are not shown either), its number of tokens and how it ended."""
    text, tokens, reason, shown = "", 0, None, 0
    async for delta in model.engine.stream(request):
        text, tokens, reason = text + delta.text, tokens + len(delta.token_ids), delta.finish_reason
        ready = text.strip()  # blanks are held back until something follows them
        show(ready[shown:])
        shown = len(ready)
    return text.strip(), tokens, reason


def _lines() -> Iterator[str]:
    """Lines from the terminal; an empty line, the end of input or Ctrl-C ends the talk."""
    try:
        while line := (input("> ") if sys.stdin.isatty() else sys.stdin.readline()).strip():
            yield line
    except (EOFError, KeyboardInterrupt):
        print()
