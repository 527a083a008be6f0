"""Where a completion puts its answer: scope first, then the slots.

Scope: after the last `</think>`, before a question turn that the model started itself. Slots: \\boxed{}, `#### x`, <answer>, "answer is x".
Linear time: brackets and tags are matched once for the whole text, and a slot's body is cut out only when somebody looks at it.

Example:
    >>> slots("16 - 7 = 9. The answer is 9.\\n#### 18")
    ['9.', '18']
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

LONGEST = 200_000  # characters from the end that are looked at at all

Kind = Literal["box", "tag", "hash", "phrase", "cut"]

_VERB = r"(?:is|would[ \t]+be|will[ \t]+be|should[ \t]+be|must[ \t]+be|becomes|equals)\b(?![ \t]*not\b)[ \t]*[:：]?"
_FOREIGN = (
    "respuesta|réponse|antwort|risposta|resposta|antwoord|odpowiedź|cevap|jawaban|đáp án|đáp số|ответ|उत्तर|الجواب|答え|정답|답"
)
_OPENING = re.compile(
    rf"""(?P<box>\\f?box(?:ed)?[ \t]{{0,4}}(?:\{{|(?=[\dA-Z])))
    |(?P<tag><answer>)
    |(?P<hash>(?<!\#)\#\#\#\#(?!\#))
    |(?P<phrase>\banswer\b(?:[ \t]+(?:to|for)[ \t][^\n.:]{{1,40}}?|[ \t]*\([^()\n]{{1,40}}\))?(?:\*\*|__|[*_])?[ \t]*(?:[:：=]|,?[ \t]*{_VERB})
      |(?:^|\n)[ \t#*_>]*(?:(?:the|my)[ \t]+)?(?:(?:final|correct)[ \t]+)?answer[ \t*_]*(?=\n)
      |故选[ \t]*[:：]?
      |(?:最终|最后|正确)?(?:答案|答)(?:\*\*)?[ \t]*(?:应该|应|就)?(?:是|为|等于|[:：=])(?!不)[ \t]*[:：]?
      |(?:{_FOREIGN})(?![ \t]+(?:no|non|não|не)\b)(?:[ \t]+[^\W\d_]{{1,12}})?(?:[ \t]+(?:est|ist|es|è|é|is|jest|adalah)(?![^\W\d_]))?[ \t]*(?:は|은|는|[:：])?)""",
    re.VERBOSE | re.IGNORECASE,
)
_CLOSE_TAG = re.compile(r"</answer>", re.IGNORECASE)
_THINK = re.compile(r"<think>", re.IGNORECASE)
_END_OF_THINK = re.compile(r"</think>", re.IGNORECASE)
_QUESTION = "Question|Problem|Exercise|Q|Human|User|Instruction|Input|Pregunta|Frage|Вопрос|问题|题目|下一题|问|質問|질문"
_TURN = re.compile(
    rf"\n[ \t]*(?:[#*>\-]+[ \t]*)?(?:(?:Next|New|Another)[ \t]+)?(?:{_QUESTION})[ \t]*\d*[ \t]*(?:\*\*)?[ \t]*[:：]"
    r"|\n[ \t]*[#*]+[ \t]*(?:Question|Problem|Exercise)[ \t]*\d*[ \t*]*(?=\n)"
    r"|\n[ \t]*(?-i:Q)\d{1,3}[.)][ \t]"
    r"|[ \t](?:(?-i:Question)|(?:next|new|another)[ \t]question)[ \t]*\d*:"
    r"|(?P<token><\|(?:im_start|im_end|endoftext|end_of_text|eot_id|end|user|start_header_id)\|>|</s>|<(?:start|end)_of_turn>|\[/?INST\])",
    re.IGNORECASE,
)
_SOMETHING = re.compile(r"[^\W_]|[√∞]")  # `The answer is **$` holds nothing
_TALK = re.compile(r"(?!\W*(?i:yes|no|true|false)\b)(?:[A-Za-z'’]{2,}|[aI]\b|[\s.,;:!?*_-])*+")
_MARKER = {
    "hash": re.compile(r"(?:\*\*)?(?:\d+[.):]\s+\D|(?:step|part|第)\b)", re.IGNORECASE),
    "phrase": re.compile(r"(?:\*\*)?(?:1[.):]\s+[^\n]{1,90}=|(?:step|part|第)\b)", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """`text[start:end]` is what the slot holds. `cut`: never closed, or empty where an answer should be: it was cut off."""

    kind: Kind
    start: int
    end: int
    text: str

    def body(self, most: int) -> str:
        """What it holds, at most that many characters of it."""
        return self.text[self.start : min(self.end, self.start + most)].strip()

    @property
    def empty(self) -> bool:
        return _SOMETHING.search(self.text, self.start, self.end) is None

    @property
    def heading(self) -> bool:
        """`#### 1. Count the eggs`, `Answer: Step 1: ...`: the working begins, no answer is given."""
        marker = _MARKER.get(self.kind)
        return marker is not None and marker.match(self.text[self.start : min(self.end, self.start + 100)].lstrip()) is not None

    @property
    def talks(self) -> bool:
        """I hope this answer is helpful."""
        return self.kind == "phrase" and _TALK.fullmatch(self.body(200)) is not None


def scope(completion: str) -> str:
    """What counts of a completion: nothing inside reasoning, nothing of a next question the model asks itself."""
    return first_turn(spoken(completion))[0]


def spoken(completion: str) -> str:
    """What comes after the reasoning; nothing where the reasoning was never closed."""
    ends = [m.end() for m in _END_OF_THINK.finditer(completion)]
    text = completion[ends[-1] :] if ends else completion
    return "" if _THINK.search(text) else text[-LONGEST:]


def first_turn(text: str) -> tuple[str, list[Slot]]:
    """The text before a question turn that the model started itself, and its slots."""
    found = openings(text)
    said = [s.end if s.kind in ("box", "tag") else s.start + 1 for s in found if s.kind != "cut" and not s.empty]
    answered = min(said, default=len(text) + 1)
    for turn in _TURN.finditer(text):
        at = turn.start()
        if at >= answered or (turn["token"] and text[:at].strip()) or (turn[0].startswith("\n") and _plain_answer(text, at)):
            return text[:at], openings(text[:at])
    return text, found


_NUMBER_ONLY = re.compile(r"(?:A|Assistant)?[ \t]*[:：]?[^\w\n]*\d[\d.,/%]*[^\w\n]*\w{0,12}[^\w\n]*", re.IGNORECASE)


def _plain_answer(text: str, at: int) -> bool:
    """Whether an answer without a slot ends at `at`: a paragraph with a number, or a line that is a number and no more."""
    before = text[max(0, at - 1000) : at].rstrip()
    line = before[before.rfind("\n") + 1 :]
    return re.search(r"\d", line) is not None if text[at - 1 : at] == "\n" else _NUMBER_ONLY.fullmatch(line) is not None


def slots(text: str) -> list[str]:
    """What each slot holds, in the order of the text."""
    return [s.body(LONGEST) for s in openings(text) if s.kind != "cut" and not s.empty and not s.heading]


def openings(text: str) -> list[Slot]:
    """Every slot, in the order in which they open. A phrase or `####` ends with its line, its container, or at the next opening."""
    found = list(_OPENING.finditer(text))
    braces = _braces(text) if any(m["box"] for m in found) else {}
    tags = [m.start() for m in _CLOSE_TAG.finditer(text)]
    return list(_cut_out(text, found, braces, tags))


def _cut_out(text: str, found: list[re.Match[str]], braces: dict[int, int], tags: list[int]) -> Iterator[Slot]:
    limits: list[int] = []  # ends of the containers that are open
    line_end, written = -1, len(text.rstrip())
    for n, m in enumerate(found):
        start, following = m.end(), found[n + 1].start() if n + 1 < len(found) else len(text)
        while limits and limits[-1] <= m.start():
            limits.pop()
        kind: Kind = "box" if m["box"] else "tag" if m["tag"] else "hash" if m["hash"] else "phrase"
        if kind in ("box", "tag"):
            end = _closing(text, m, braces) if kind == "box" else _closing_tag(start, tags)
            if end is None:
                yield Slot("cut", start, len(text), text)
                continue
            limits.append(end)
        else:
            start = _first_line(text, start) if kind == "phrase" else start
            if line_end < start:
                line_end = at if (at := text.find("\n", start)) >= 0 else len(text)
            end = min(line_end, max(start, following), limits[-1] if limits else line_end)
        slot = Slot(kind, start, max(start, end), text)
        yield Slot("cut", start, end, text) if slot.empty and (kind in ("box", "tag") or end >= written) else slot


def _first_line(text: str, start: int) -> int:
    """A phrase with nothing behind it on its line speaks of the next line, which may be an item of a list."""
    m = re.compile(r"[ \t:：*_]{0,8}(?:\n[ \t]{0,8}){1,4}(?:[-*•][ \t])?").match(text, start)
    return m.end() if m else start


def _closing_tag(start: int, tags: list[int]) -> int | None:
    at = bisect_left(tags, start)
    return tags[at] if at < len(tags) else None


def _closing(text: str, m: re.Match[str], braces: dict[int, int]) -> int | None:
    if m[0].endswith("{"):
        return braces.get(m.end() - 1)
    bare = re.compile(r"\d+(?:\.\d+)?|[A-Z]\b").match(text, m.end())
    return m.end() if bare is None else bare.end()


def _braces(text: str) -> dict[int, int]:
    """Where each opening brace is closed."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for m in re.finditer(r"[{}]", text):
        if m[0] == "{":
            opened.append(m.start())
        elif opened:
            pairs[opened.pop()] = m.start()
    return pairs
