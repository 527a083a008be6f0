"""The OpenAI API's requests, and /predict's. Strict: a wrong type is refused, a known field that is not honoured is refused, a near miss of
a known name is refused; what changes no answer (`user`, `metadata`, ...) is accepted.

In: JSON. Out: a validated body; `sampling(body, ...)` gives the engine's parameters and `extras(body)` what only some engines can do.

Example:
    >>> body = ChatBody.model_validate({"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "penalty": 1})
    >>> extras(body)
    {}
"""

from __future__ import annotations

import difflib
import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from policyloop.errors import BadInput
from policyloop.types import Message, Role, SamplingParams

MOST_ANSWERS = 64
MOST_STOPS = 16
Number = Annotated[float, Field(allow_inf_nan=False)]
NEUTRAL: dict[str, tuple[Any, ...]] = {  # known fields with the values that change nothing
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "min_tokens": (0,),
    "bad_words": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "top_logprobs": (0,),
    "prompt_logprobs": (0, False),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "logits_processors": ([],),
}
HARMLESS = ("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "priority")


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, tree: Any) -> Any:
        """JSON can spell half a character (`\\ud800`), which no tokenizer and no UTF-8 reply can hold."""
        try:
            json.dumps(tree, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError) as problem:
            raise ValueError("text with half a surrogate pair, or nesting without end") from problem
        return tree


def _text_of(content: Any) -> Any:
    """A list of text parts is their text; other kinds of parts are refused by name."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("a list of parts may hold {type: text, text: ...} only")
    return "".join(part["text"] for part in content)


Text = Annotated[str, BeforeValidator(_text_of, json_schema_input_type=str | list[dict[str, Any]])]


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text

    def plain(self) -> Message:
        role: Role = "system" if self.role == "developer" else self.role
        return Message(role, self.content)


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool = False


class SamplingBody(Body):
    """What chat and completions share. Null = the default."""

    model: str | None = Field(None, max_length=512, description="As /v1/models names it; left out: the model served here.")
    max_tokens: int | None = Field(None, ge=1)
    temperature: Number | None = Field(None, ge=0, le=100)
    top_p: Number | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, description="0 or -1 = off.")
    min_p: Number | None = Field(None, ge=0, le=1)
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    stop: (
        Annotated[str, Field(min_length=1, max_length=1000)] | list[Annotated[str, Field(min_length=1, max_length=1000)]] | None
    ) = Field(None, description=f"At most {MOST_STOPS}.")
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = Field(None, max_length=256)
    ignore_eos: bool | None = Field(None, description="Go on after the model's own stop tokens, to max_tokens (for measuring).")
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, max_length=512)


class ChatBody(SamplingBody):
    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs)


class CompletionBody(SamplingBody):
    prompt: str | list[Annotated[int, Field(ge=0, lt=2**31)]] | list[str] = Field(
        description="One text, or one list of token ids."
    )
    logprobs: int | None = Field(None, ge=0, le=1, description="0 or 1: the log-prob of each sampled token.")

    @property
    def wants_logprobs(self) -> bool:
        return self.logprobs is not None

    def one_prompt(self) -> str | tuple[int, ...]:
        """Errors: BadInput for a list of texts with other than one entry."""
        if isinstance(self.prompt, str):
            return self.prompt
        texts = [p for p in self.prompt if isinstance(p, str)]
        if not texts:
            return tuple(p for p in self.prompt if isinstance(p, int))
        if len(texts) > 1:
            raise BadInput(f"prompt holds {len(texts)} texts", "one text a request", "prompt")
        return texts[0]


class PredictBody(Body):
    question: str = Field(min_length=1)


class PredictReply(BaseModel):
    answer: str
    reasoning: str
    version: str
    request_id: str


def extras(body: Body) -> dict[str, Any]:
    """Known fields beyond the schema whose values would change the answer. Errors: BadInput for a near miss of a known name."""
    known = {*type(body).model_fields, *NEUTRAL, *HARMLESS}
    asked: dict[str, Any] = {}
    for name, value in (body.model_extra or {}).items():
        if name in NEUTRAL:
            if value is not None and value not in NEUTRAL[name]:
                asked[name] = value
        elif name not in known and (near := difflib.get_close_matches(name, known, 1, 0.85)):
            raise BadInput(f"unknown field {name}", f"{near[0]}, if that was meant", name)
    return asked


def sampling(body: SamplingBody, defaults: Mapping[str, Any], max_new_tokens: int) -> SamplingParams:
    """The engine's parameters; what the request leaves open is the model's own default, a missing seed is a fresh one."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > MOST_STOPS:
        raise BadInput(f"{len(stops)} stop strings", f"at most {MOST_STOPS}", "stop")

    def chosen(name: str, plain: Any) -> Any:
        given = getattr(body, name)
        return defaults.get(name, plain) if given is None else given

    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=float(chosen("temperature", 1.0)),
        top_p=float(chosen("top_p", 1.0)),
        top_k=max(0, chosen("top_k", 0)),
        min_p=float(chosen("min_p", 0.0)),
        stop=tuple(stops),
        stop_ids=tuple(body.stop_token_ids or ()),
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        n=body.n or 1,
        ignore_eos=bool(body.ignore_eos),
    )
