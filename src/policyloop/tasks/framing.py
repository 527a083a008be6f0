"""From a question to what the model is asked: system message, template and answer format, in one place.

Training, evaluation and serving all ask through the same `Framing`, so that a served question looks like a trained one.

Example:
    >>> Framing(prompt_template="Solve: {prompt}", answer_format="Reply with only the final answer.").content("2+3?")
    (Message(role='user', content='Solve: 2+3?\\nReply with only the final answer.'),)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.reading import literal
from policyloop.types import Message, settings

PLACE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][\w.-]*)\}")


@settings
class Framing:
    """See `DataSettings` for the four fields."""

    system: str | None = None
    prompt_template: str | None = None
    answer_format: str = ""
    prompt_as: Literal["chat", "text"] = "chat"

    @staticmethod
    def of(settings: DataSettings, answer_format: str = "", prompt_as: Literal["chat", "text"] | None = None) -> Framing:
        """The framing of `settings`; `answer_format` is the task's own default."""
        chosen = answer_format if settings.answer_format is None else settings.answer_format
        framing = Framing(
            system=settings.system,
            prompt_template=settings.prompt_template,
            answer_format=chosen,
            prompt_as=prompt_as or settings.prompt_as,
        )
        if framing.prompt_as == "text" and framing.system is not None:
            raise BadInput("data.system with prompts that are plain text", "prompt_as: chat, or no system", "data.system")
        if framing.prompt_template is not None and "{prompt}" not in framing.prompt_template:
            raise BadInput("data.prompt_template has no {prompt}", "the question's place as {prompt}", "data.prompt_template")
        return framing

    def content(
        self, question: str | Sequence[Message], columns: Mapping[str, Any] | None = None, system: str | None = None
    ) -> str | tuple[Message, ...]:
        """What a prompt holds. A message list keeps its turns; its last user message is framed. `system`: this row's own."""
        columns, system = columns or {}, system or self.system
        if isinstance(question, str):
            asked = self._ask(question, columns)
            if self.prompt_as == "text":
                return asked
            messages = [Message("user", asked)]
        else:
            messages = list(question)
            if messages[-1].role == "user":
                messages[-1] = replace(messages[-1], content=self._ask(messages[-1].content, columns))
        if system and messages[0].role != "system":
            messages.insert(0, Message("system", system))
        return tuple(messages)

    def _ask(self, question: str, columns: Mapping[str, Any]) -> str:
        asked = question if self.prompt_template is None else self._fill(self.prompt_template, {**columns, "prompt": question})
        return f"{asked}\n{self.answer_format}" if self.answer_format else asked

    @staticmethod
    def _fill(template: str, columns: Mapping[str, Any]) -> str:
        """Braces around a column name are replaced in one pass (a question with braces stays as it is); {{ and }} are braces."""

        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name is None:
                return found[0][0]
            if name not in columns:
                raise BadInput(
                    f"data.prompt_template asks for {{{name}}}",
                    f"{', '.join(sorted(columns))} (double the braces to keep them)",
                    "data.prompt_template",
                )
            return literal(columns[name]) or ""

        return PLACE.sub(value, template)
