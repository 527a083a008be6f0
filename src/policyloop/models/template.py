"""Prompts and conversations to token ids, and back. Control tokens come from the template alone, never from what somebody wrote.

Text is cut, not escaped: where a message holds a control string such as `<|im_end|>`, a marker is put after its first character,
the template renders as ever, and the text is tokenised in the pieces between markers, so that no piece holds the string. Text
without such strings takes the ordinary path. Masks come from the pieces a conversation is made of, never from token values.

Example (SmolLM2, a ChatML template):
    >>> renderer = load_renderer(resolve("smollm2-135m-instruct"))
    >>> renderer.decode(renderer.prompt_ids(Prompt.make("t", [Message("user", "hi")])))   # special tokens left out
    'system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\\nuser\\nhi\\nassistant\\n'
    >>> ids, mask = renderer.conversation([Message("user", "hi"), Message("assistant", "yo")])  # mask 1 on `yo<|im_end|>`
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from policyloop.errors import BadInput, NotFound
from policyloop.models.catalogue import base_of
from policyloop.types import Message, Prompt

log = logging.getLogger(__name__)
Ids = tuple[int, ...]

# text as it is, one line end between turns: the template of base models, stored and exported like any other
PLAIN = (
    "{%- for message in messages -%}{{ message['content'] }}"
    "{%- if message['role'] == 'assistant' -%}{{ eos_token }}"
    "{%- elif not loop.last or add_generation_prompt -%}{{ '\\n' }}{%- endif -%}{%- endfor -%}"
)
PLAIN_WITH_BOS = "{{- bos_token -}}" + PLAIN


class Renderer:
    """A tokenizer with its template and stop ids. `notes` has what a user should be told (a default system prompt, say)."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Sequence[int] = (),
        context: int | None = None,
        name: str = "this model",
    ) -> None:
        self.tokenizer, self.context, self.name = tokenizer, context, name
        added = {
            i: t for i, t in getattr(tokenizer, "added_tokens_decoder", {}).items() if len(t.content) > 1 and t.content.strip()
        }
        special = {t.content for t in added.values() if t.special}
        source = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
        self._special_ids = set(tokenizer.all_special_ids) | {i for i, t in added.items() if t.special}
        self._controls = {
            "assistant": _any_of(special),  # <think> and its like are the assistant's to say
            "user": _any_of(special | {t.content for t in added.values() if t.content in source}),
        }
        self._prefix = self._default_prefix()
        self._warned = False
        own = [] if tokenizer.eos_token is None else [int(str(tokenizer.eos_token_id))]
        self._turn_end = self._end_of_turn(added)
        self.stop_ids: Ids = tuple(dict.fromkeys([*self._turn_end, *own, *eos_ids]))
        self.notes = self.lint()

    # --- text to ids --------------------------------------------------------------------------------------------------------

    def prompt_ids(self, prompt: Prompt, max_tokens: int | None = None, truncate: bool = False) -> Ids:
        """Ids up to where the answer starts. Longer than `max_tokens` (default: the model's context less one) is an error, or
        with `truncate` loses its oldest tokens."""
        if prompt.messages is not None:
            ids = self._encode(self._render(prompt.messages, generation=True))
        else:
            ids = self._prefix + self._encode(self._literal(prompt.text or "", "user"))
        if not ids:
            raise BadInput(f"prompt {prompt.id} is empty", "at least one token", "the data")
        limit = max_tokens or (self.context - 1 if self.context else None)
        if limit is None or len(ids) <= limit:
            return ids
        if not truncate:
            raise BadInput(
                f"prompt {prompt.id} has {len(ids)} tokens", f"at most {limit}", "the data, or a model with a longer context"
            )
        head = self._prefix if ids[: len(self._prefix)] == self._prefix else ()
        return (head + ids[len(ids) - max(0, limit - len(head)) :])[:limit]

    def text(self, messages: Sequence[Message]) -> str:
        """What the template makes of a conversation, up to where the assistant starts."""
        return self._render(messages, generation=True).replace(MARK, "")

    def conversation(self, messages: Sequence[Message]) -> tuple[Ids, Ids]:
        """ids and mask; every assistant turn is supervised, its end of turn included, nothing else. Where the template rewrites
        earlier turns (drops their reasoning), only the last one is."""
        turns = [i for i, m in enumerate(messages) if m.role == "assistant"]
        if not turns:
            raise BadInput("a conversation without an assistant turn", "at least one", "the data")
        try:
            ids, mask = self._turns(messages, turns)
        except ValueError:
            ids, mask = self._turns(messages, turns[-1:])
        if not 0 < sum(mask) < len(mask):
            raise BadInput(
                f"{sum(mask)} of {len(mask)} tokens would be supervised", "some of them, not all", "model.template or the data"
            )
        return ids, mask

    def demonstration(self, prompt: Prompt, answer: str) -> tuple[Ids, Ids]:
        """A prompt exactly as it is sampled from, then `answer` and the end of turn; mask 1 on what follows the prompt."""
        before = self.prompt_ids(prompt)
        if prompt.messages is None:
            tail = (*self._encode(self._literal(answer, "assistant")), self.stop_ids[0])
        else:
            _, text = self._tail([*prompt.messages, Message("assistant", answer)], len(prompt.messages))
            tail = self._supervised(text)[0]
        return before + tail, (0,) * len(before) + (1,) * len(tail)

    def _turns(self, messages: Sequence[Message], turns: Sequence[int]) -> tuple[Ids, Ids]:
        ids: Ids = ()
        mask: Ids = ()
        done = ""
        for i in turns:
            before, tail = self._tail(messages, i)
            if not before.startswith(done):
                raise ValueError("the template rewrites earlier turns")
            context = self._encode(before[len(done) :])
            answer, rest = self._supervised(tail)
            last = i == turns[-1]
            ids += context + answer + (() if last else rest)
            mask += (0,) * len(context) + (1,) * len(answer) + (() if last else (0,) * len(rest))
            done = before + tail
        return ids, mask

    def _tail(self, messages: Sequence[Message], i: int) -> tuple[str, str]:
        """Rendered text up to where the assistant starts turn `i`, and what the template makes of the turn."""
        before = self._render(messages[:i], generation=True)
        after = self._render(messages[: i + 1], generation=False)
        if after.startswith(before):
            return before, after[len(before) :]
        end = "".join(self.tokenizer.convert_ids_to_tokens(list(self._turn_end)))
        return before, self._literal(messages[i].content, "assistant") + end

    def _supervised(self, tail: str) -> tuple[Ids, Ids]:
        """A rendered answer up to its end of turn, and what the template puts behind it (never sampled, so never trained)."""
        ids = self._encode(tail)
        ends = [n for n, i in enumerate(ids) if i in self.stop_ids]  # the template's own: content has been cut
        if not ends:
            raise BadInput(
                f"the chat template of {self.name} ends no assistant turn: the model would never learn to stop",
                "a template that writes an end-of-turn token, or `plain`",
                "model.template",
            )
        return ids[: ends[-1] + 1], ids[ends[-1] + 1 :]

    def _render(self, messages: Sequence[Message], generation: bool) -> str:
        """The template's text, with markers inside what somebody wrote to look like control tokens."""
        if not self.tokenizer.chat_template:
            raise BadInput(f"{self.name} has no chat template", "template: plain, or a Jinja file", "model.template")
        if not messages:
            raise BadInput("a conversation starts with the assistant", "a user's turn before it", "the data")
        turns = [{"role": m.role, "content": self._literal(m.content, m.role)} for m in messages]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=generation)
        except TemplateError as problem:
            roles = ", ".join(m.role for m in messages)
            raise BadInput(
                f"the chat template of {self.name} refuses a conversation of {roles} ({problem})",
                "roles in the order it knows",
                "the data or model.template",
            ) from problem
        return str(text)

    def _literal(self, text: str, role: str) -> str:
        """`text` with a marker after the first character of every control string."""
        controls = self._controls["assistant" if role == "assistant" else "user"]
        text = text.replace(MARK, "")
        if controls is None or not controls.search(text):
            return text
        if not self._warned:
            log.warning("control strings such as %s in a message are kept as text", controls.search(text)[1])  # type: ignore[index]
            self._warned = True
        return controls.sub(lambda m: m[0] + MARK, text)

    def _encode(self, text: str) -> Ids:
        """Pieces between markers, nothing added: a rendered template brings its own BOS."""
        pieces = [piece for piece in text.split(MARK) if piece]
        return tuple(i for p in pieces for i in self.tokenizer(p, add_special_tokens=False, verbose=False)["input_ids"])

    # --- ids to text --------------------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int]) -> str:
        """The text a reader sees: special tokens left out, nothing tidied."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def stream(self) -> TextStream:
        """For one answer that arrives token by token."""
        return TextStream(self)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """One piece per token, whole characters only (each with the token that completes it), special tokens by name."""
        stream, pieces = self.stream(), list[str]()
        for i in ids:
            name = str(self.tokenizer.convert_ids_to_tokens(int(i))) if i in self._special_ids else None
            pieces.append(stream.push([i]) if name is None else stream.finish() + name)
        if pieces:
            pieces[-1] += stream.finish()
        return pieces

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @property
    def chat(self) -> bool:
        """Whether messages can be rendered."""
        return bool(self.tokenizer.chat_template)

    # --- what the template is -----------------------------------------------------------------------------------------------

    def lint(self) -> list[str]:
        """Look before the first token is spent. Errors: BadInput for a template that cannot work. Returns what should be said."""
        if not self.stop_ids:
            raise BadInput(f"{self.name} has no end-of-sequence token", "an eos_token in its tokenizer", "the model folder")
        if not self.chat:
            return [f"{self.name} has no chat template: prompts are text as it is"]
        hello = [Message("user", "hello")]
        bare, ready = self._render(hello, generation=False), self._render(hello, generation=True)
        if bare == ready:
            raise BadInput(
                f"the chat template of {self.name} has no add_generation_prompt branch: the model would continue the user's turn",
                "a template with that branch, or `plain`",
                "model.template",
            )
        if "hello" not in bare:
            raise BadInput(
                f"the chat template of {self.name} leaves the user's text out", "a template that shows it", "model.template"
            )
        self.conversation([*hello, Message("assistant", "yes")])
        notes = []
        if (system := self.default_system()) is not None:
            notes.append(f"the template of {self.name} adds a system prompt where there is none: {system!r}")
        bos = self.tokenizer.bos_token_id
        if bos is not None and bos in self._prefix and bos not in self._encode(ready):
            notes.append(f"the template of {self.name} writes no BOS; text prompts get one, chat prompts do not")
        return notes

    def default_system(self) -> str | None:
        """The system prompt that the template adds where the conversation has none."""
        probe = "\N{MUSICAL SYMBOL G CLEF}"
        try:
            bare = self._render([Message("user", "hello")], generation=True)
            head, found, tail = self._render([Message("system", probe), Message("user", "hello")], generation=True).partition(
                probe
            )
        except BadInput:
            return None
        if not found or not (bare.startswith(head) and bare.endswith(tail)) or len(bare) <= len(head) + len(tail):
            return None
        return bare[len(head) : len(bare) - len(tail)].strip() or None

    def _default_prefix(self) -> Ids:
        """What the tokenizer puts before plain text (a BOS, or nothing); an EOS it would append is left out."""
        ids = tuple(self.tokenizer("", verbose=False)["input_ids"])
        text = tuple(self.tokenizer("a", verbose=False)["input_ids"])
        return ids if text[: len(ids)] == ids else tuple(i for i in ids[:1] if text[:1] == ids[:1])

    def _end_of_turn(self, added: dict[int, Any]) -> Ids:
        """The token with which the template ends an assistant's turn."""
        if not self.chat:
            return ()
        try:
            text = self._render([Message("user", "hello"), Message("assistant", "yes")], generation=False)
        except BadInput:
            return ()
        rest = text[text.rfind("yes") + len("yes") :].lstrip()
        names = {t.content: i for i, t in added.items()}
        ends = [name for name in names if rest.startswith(name)]
        return (names[max(ends, key=len)],) if ends else ()

    def save(self, folder: Path | str) -> None:
        """Tokenizer, template and stop ids, so that another program does the same."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(path)
        generation = path / "generation_config.json"
        known = json.loads(generation.read_text()) if generation.exists() else {}
        generation.write_text(json.dumps({**known, "eos_token_id": list(self.stop_ids)}, indent=1) + "\n")

    def files(self) -> dict[str, bytes]:
        """What `save` writes, by name."""
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            return {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}


class TextStream:
    """Ids in, whole characters out: bytes of an unfinished character wait for the rest, three signs at most.

    >>> stream = renderer.stream(); [stream.push([i]) for i in ids] + [stream.finish()]   # joined: renderer.decode(ids)
    """

    def __init__(self, renderer: Renderer) -> None:
        self._decode, self._ids = renderer.decode, list[int]()
        # all text up to ids[:_read] has been given out, and of the text of ids[_from:] the first `_given` characters
        self._from = self._read = self._given = 0

    def push(self, ids: Sequence[int]) -> str:
        self._ids += ids
        return self._advance(waits=True)

    def finish(self) -> str:
        return self._advance(waits=False)

    def _advance(self, waits: bool) -> str:
        now = self._decode(self._ids[self._from :])
        ready = len(now)
        while waits and ready > len(now) - LONGEST_WAIT and now.endswith(UNFINISHED, 0, ready):
            ready -= 1
        piece, self._given = now[self._given : ready], max(self._given, ready)
        if piece and ready == len(now):  # between characters: what follows needs only the last piece as its context
            self._from, self._read = self._read, len(self._ids)
            self._given = len(self._decode(self._ids[self._from :]))
        return piece


UNFINISHED = "\N{REPLACEMENT CHARACTER}"
LONGEST_WAIT = 3  # a character has at most 4 bytes: the fourth completes it or shows that there is none
MARK = "\uf8f7"  # private use: no model writes it, no text needs it


def _any_of(strings: set[str]) -> re.Pattern[str] | None:
    """Matches the first character of any of the strings, overlapping ones too."""
    ordered = "|".join(re.escape(s) for s in sorted(strings, key=len, reverse=True))
    return re.compile(f"(?=({ordered})).", re.DOTALL) if strings else None


def load_renderer(path: Path | str, template: str | None = None) -> Renderer:
    """The renderer of a model folder. template: None = its own, `plain` = text as it is, else a Jinja file.

    An adapter folder without tokenizer uses its base's. Errors: BadInput, NotFound.
    """
    folder = Path(path)
    if not (folder / "tokenizer_config.json").exists() and (folder / "adapter_config.json").exists():
        folder = base_of(folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as problem:
        raise NotFound(
            f"{folder} has no tokenizer that loads ({problem})", "a tokenizer.json beside the weights", "the folder"
        ) from problem
    chosen = _template(template, tokenizer)
    if chosen is not None:
        tokenizer.chat_template = chosen
    sizes = [_read(folder / "config.json").get("max_position_embeddings"), tokenizer.model_max_length]
    context = min((int(s) for s in sizes if s and s < 1e9), default=None)
    eos = _read(folder / "generation_config.json").get("eos_token_id") or _read(folder / "config.json").get("eos_token_id") or []
    name = f"{folder.name} with template {template}" if template else folder.name
    return Renderer(tokenizer, [eos] if isinstance(eos, int) else eos, context, name)


def _template(template: str | None, tokenizer: PreTrainedTokenizerBase) -> str | None:
    if template is None:
        return None
    if template == "plain":
        bos = tokenizer.bos_token_id
        return PLAIN_WITH_BOS if bos is not None and bos in tokenizer("", verbose=False)["input_ids"] else PLAIN
    file = Path(template).expanduser()
    if not file.is_file():
        raise BadInput(f"template {template}", "plain, or the path of a Jinja file", "model.template")
    return file.read_text(encoding="utf-8")


def _read(file: Path) -> dict[str, Any]:
    """A JSON file's mapping, the text part of a multimodal config; nothing where there is no file."""
    tree = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return tree | tree.get("text_config", {})
