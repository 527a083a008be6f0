"""Where a completion puts its answer: scope first, then the last well-formed slot.

Scope: after the last `</think>`, before a question turn that the model started itself. Slots: \\boxed{}, `#### x`, <answer>, "answer is x".

Example:
    >>> slots("16 - 7 = 9. The answer is 9.\\n#### 18")
    ['9.', '18']
"""

from __future__ import annotations

import re

LONGEST = 200_000  # characters from the end that are looked at at all

_TURN = re.compile(
    r"(?:\n[ \t]*(?:[#*>\-]+[ \t]*)?(?:Question|Problem|Q|Human|User|Instruction|问题|题目|问)[ \t]*\d*[ \t]*(?:\*\*)?[ \t]*[:：]|"
    r"<\|im_start\|>|<\|(?:user|end|eot_id)\|>)",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?:\{|(?=[\dA-Z]))")
_HASHES = re.compile(r"(?<!#)####(?!#)[ \t]*([^\n]*)")
_HEADING = re.compile(r"(?:\*\*)?(?:\d+[.):]\s+\D|(?:step|part|step-by-step|solution|explanation|第)\b)", re.IGNORECASE)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.IGNORECASE | re.DOTALL)
_PHRASE = re.compile(
    r"(?:\banswer\b(?:[ \t]+to[ \t][^\n.:]{1,80}?)?(?:\*\*|__)?[ \t]*(?:[:：=]|(?:is|would be|will be|should be|becomes|equals)\b(?!\s*(?:not|n't)\b)[ \t]*[:：]?)"
    r"|(?:最终|最后|正确|所以)?(?:答案|答)(?:\*\*)?[ \t]*(?:应该|应|就)?(?:是|为|等于|[:：=])(?!不)[ \t]*[:：]?"
    r"|(?:respuesta|réponse|antwort|risposta|resposta|ответ|答え|정답|답)(?:[ \t]+(?:es|est|ist|è|é|final))?[ \t]*(?:は|은|는|[:：])?"
    r")[ \t]*((?:\*\*|__|[:：])?[ \t]*\n?\s*[^\n]*)",
    re.IGNORECASE,
)


def scope(completion: str) -> str:
    """What counts of a completion: nothing inside reasoning, nothing of a next question the model asks itself."""
    text = completion[-LONGEST:]
    head, closed, tail = text.rpartition("</think>")
    text = tail if closed else text
    opened = text.find("<think>")
    if opened >= 0:  # never closed: what comes after it was still thought
        text = text[:opened]
    for turn in _TURN.finditer(text):
        before = text[: turn.start()]
        if slots(before) or (re.search(r"\d", before) and turn[0].startswith("\n") and before.rstrip() != before) or turn[0].startswith("<|"):
            return before
    return text


def slots(text: str) -> list[str]:
    """What each slot holds, in the order of the text."""
    found = [(m.start(), m[1]) for m in _TAG.finditer(text)]
    found += [(m.start(), body) for m in _BOX.finditer(text) if (body := _braced(text, m)) is not None]
    found += [(m.start(), m[1]) for m in _HASHES.finditer(text) if m[1].strip() and not _HEADING.match(m[1].strip())]
    found += [(m.start(), m[1]) for m in _PHRASE.finditer(text) if m[1].strip()]
    return [body.strip() for _, body in sorted(found)]


def _braced(text: str, m: re.Match[str]) -> str | None:
    """The balanced content after \\boxed{; None when it is never closed. Without braces, one number or letter."""
    if not m[0].endswith("{"):
        bare = re.compile(r"\d+(?:\.\d+)?|[A-Z]\b").match(text, m.end())
        return None if bare is None else bare[0]
    depth = 1
    for at in range(m.end(), min(len(text), m.end() + 20_100)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[m.end() : at]
    return None
