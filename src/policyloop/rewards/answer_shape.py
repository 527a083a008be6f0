"""Golds that are no single number: clock times, tuples and sets, choice letters, yes and no, expressions.

A shape says which golds it reads and whether an answer matches one. In: the scoped text, its slots, the gold without its wrapping.

Example:
    >>> matches_parts("The point is (1, 1/2).", [], "(1, 0.5)")
    True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from policyloop.rewards.answer_algebra import normal_form
from policyloop.rewards.answer_slot import Slot
from policyloop.rewards.answer_value import LONGEST, read, unwrap

LONGEST_EXPRESSION = 500
MOST_PARTS = 64


class Shape(NamedTuple):
    reads: Callable[[str], bool]
    matches: Callable[[str, list[Slot], str], bool]


_VALUE = re.compile(r"[\d\\=^+*/(\[{√π±]")
_MATH = re.compile(r"(?<!\$)\$++([^$\n]{1,500})\$|\\\((.{1,500}?)\\\)")
_ASIDE = re.compile(r",?\s(?:because|since|as|where|which|so)\b|[.。]\s|。$")


def put_forward(text: str, found: list[Slot]) -> str:
    """What the last well-formed slot holds, else the last formula or the last line; nothing where the only slot was cut off."""
    for slot in reversed(found[-50:]):
        body = slot.body(LONGEST)
        if slot.kind == "phrase" and _VALUE.search(body[:80]):
            formula = _MATH.match(body.lstrip(" :*"))
            aside = _ASIDE.search(body)
            return unwrap((formula[1] or formula[2]) if formula else body[: aside.start()] if aside else body)
        if slot.kind in ("box", "tag") or (slot.kind == "hash" and not slot.heading):
            return unwrap(body)
    if any(slot.kind == "cut" for slot in found):
        return ""
    line = text.strip().rsplit("\n", 1)[-1][-LONGEST:]
    formulas = _MATH.findall(line)
    return unwrap("".join(formulas[-1]) if formulas else line)


# --- clock times and ratios -------------------------------------------------------------------------------------------------

_CLOCK = re.compile(r"(?<![\d:.])(\d{1,4}(?::\d{1,4}){1,3})(?![\d:]|\.\d)(?:\s*([ap])\.?\s?m\b)?", re.IGNORECASE)


def matches_clock(text: str, found: list[Slot], gold: str) -> bool:
    """The same numbers at every place; am and pm count where both sides name one."""
    own = list(_CLOCK.finditer(put_forward(text, found)))
    want = _CLOCK.match(gold)
    if not own or want is None:
        return False
    last = own[0] if found else own[-1]
    same = [int(n) for n in last[1].split(":")] == [int(n) for n in want[1].split(":")]
    return same and (not last[2] or not want[2] or last[2].lower() == want[2].lower())


# --- tuples, intervals, sets, lists -----------------------------------------------------------------------------------------

_OPEN, _CLOSE = "([{", ")]}"


class Parts(NamedTuple):
    brackets: str  # "()", "[)", ...; "" for a set or a bare list, whose order does not count
    items: list[str]


def parts_of(text: str, bare: bool) -> Parts | None:
    """(1, 2), [0, 1), {1, 2} split at their top-level commas; `bare`: also 1, 2 without brackets."""
    text = text.replace("\\{", "{").replace("\\}", "}").strip().rstrip(".").strip()
    closed = _closed(text) if text[:1] and text[0] in _OPEN else None
    if closed is not None and (not text[closed + 1 :].strip() or not bare):
        brackets, inner = text[0] + text[closed], text[1:closed]
    elif bare:
        brackets, inner = "", re.sub(r"\s*,?\s+(?:and|or)\s+", ", ", text)
    else:
        return None
    items = _split(inner)
    return None if not 2 <= len(items) <= MOST_PARTS or not all(items) else Parts("" if brackets == "{}" else brackets, items)


def _closed(text: str) -> int | None:
    """Where the bracket that opens `text` is closed; kinds may differ, as in [0, 1)."""
    depth = 0
    for at, c in enumerate(text):
        depth += (c in _OPEN) - (c in _CLOSE)
        if depth == 0:
            return at
    return None


def _split(text: str) -> list[str]:
    items, depth, start = [], 0, 0
    for at, c in enumerate(text):
        depth += (c in _OPEN) - (c in _CLOSE)
        if c == "," and depth == 0:
            items.append(text[start:at].strip())
            start = at + 1
    return [*items, text[start:].strip()]


def _reads_parts(gold: str) -> bool:
    parts = parts_of(gold, bare=True)
    return parts is not None and "," in gold and (gold[0] in "([{\\" or all(read(p) is not None for p in parts.items))


def matches_parts(text: str, found: list[Slot], gold: str) -> bool:
    """Same brackets, same number of parts, each part equal; sets and bare lists in any order."""
    answer, want = put_forward(text, found), parts_of(gold, bare=True)
    if not found and (opened := re.search(r"[(\[{][^(\[{]*,", answer)):
        answer = answer[opened.start() :]  # The point is (1, 2).
        answer = answer[: 1 + max(answer.rfind(c) for c in _CLOSE)]
    own = parts_of(answer.rpartition("=")[2], bare=want is not None and not want.brackets)
    if own is None or want is None or own.brackets != want.brackets or len(own.items) != len(want.items):
        return False
    if want.brackets:
        return all(_same(a, b) for a, b in zip(own.items, want.items, strict=True))
    left = list(own.items)
    for item in want.items:
        same = next((a for a in left if _same(a, item)), None)
        if same is None:
            return False
        left.remove(same)
    return True


def _same(a: str, b: str) -> bool:
    if parts_of(a, bare=False) is not None:
        return matches_parts(a, [], b)
    x, y = read(a), read(b)
    return x == y if x is not None and y is not None else squeezed(a) == squeezed(b)


def squeezed(text: str) -> str:
    return re.sub(r"\s+|\\(?:left|right)(?![a-z])", "", unwrap(text)).rstrip(".").replace("∞", "\\infty")


# --- choice letters, yes and no ---------------------------------------------------------------------------------------------

_LETTER = re.compile(
    r"[\s:*\"'“”‘’]*(?:(?:the|is|option|choice|answer|letter)\b[\s:]*|选项?[\s:]*)*[(\[]?\s*(?P<letter>[A-Za-z])(?![A-Za-z'’-])\s*(?P<end>[)\].:。]|$)?",
    re.IGNORECASE,
)
_REASON = re.compile(r"\s*,?\s*(?:because|since|as|is|which|for|with|due|where|if)\b|[^\x00-\x7f]")
_ANOTHER = re.compile(r"\s*(?:[,/&]|\bor\b|\band\b|或|和)\s*[(\[]?[A-Z]\b(?!\w)")
_ALONE = re.compile(r"\s*(?:(?:option|choice)\s+)?[(\[]?([A-Z])[)\]]?[.)]?\s*", re.IGNORECASE)
_SAID = re.compile(r"(?:\b(?:option|choice|letter|choose|pick|select)\s*(?:is|:)?|选[择项]?是?)\s*[(\[]?([A-Z])(?![A-Za-z])")
_YES_NO = frozenset({"yes", "no", "true", "false"})


def _choice(body: str) -> str | None:
    """The letter that `body` puts forward. "A lot", "a bit" and "I think" are words."""
    m = _LETTER.match(body)
    if m is None or _ANOTHER.match(body, m.end("letter")):
        return None
    letter, behind = m["letter"], m.end("letter")
    if m["end"] is not None or (letter.isupper() and (letter not in "AI" or _REASON.match(body, behind))):
        return letter.upper()
    return None


def matches_letter(text: str, found: list[Slot], gold: str) -> bool:
    """A choice letter from the last slot that names one, else the one that the last line names."""
    want = gold.strip("(). ").upper()
    for slot in reversed(found[-50:]):
        own = _choice(unwrap(slot.body(LONGEST)))
        if slot.kind != "cut" and (own is not None or slot.kind in ("box", "tag")):
            return own == want
    line = unwrap(text.strip().rsplit("\n", 1)[-1][-200:])
    named = [m[1] for m in _SAID.finditer(line)] or [m[1] for m in [_ALONE.fullmatch(line)] if m]
    return bool(named) and named[-1].upper() == want and not any(s.kind == "cut" for s in found)


def matches_word(text: str, found: list[Slot], gold: str) -> bool:
    """yes, no, true or false: the first word of the last slot, else of the text or of its last line."""
    want = gold.casefold().strip(" .")
    for body in [unwrap(s.body(200)) for s in reversed(found[-50:])] or [unwrap(text[:200]), put_forward(text, [])]:
        words = re.findall(r"[a-z]+", body.casefold())[:3]
        if words and words[0] in _YES_NO:
            return words[0] == want and not (len(words) == 3 and words[1] in ("or", "and") and words[2] in _YES_NO)
    return False


# --- expressions ------------------------------------------------------------------------------------------------------------

_SYMBOLIC = re.compile(r"\\[a-zA-Z]+|[=^√π<>±]|[a-zA-Z0-9)]\s*[*/+-]\s*[(a-zA-Z0-9]|\d[a-z]\b|^[a-z]$")
_NO_VALUE = re.compile(r"[\s\d.,/%$+-]*|-?\\frac\s*\{\s*-?\d+\s*\}\s*\{\s*0+\s*\}")


_TERM = re.compile(r"[\d\\πe√∞]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_UNIT = re.compile(r"(?<=\S)(?:\s+(?:[A-Za-z]{2,12}|[mgsL])(?:\s?\^\s?\{?\d\}?)?)+\s*\.?$")
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:sqrt|sin|cos|tan|log|exp|abs|min|max|gcd|lcm|mod|arc\w+)\b)[A-Za-z]{3,}|^[Nn]/?[Aa]$")


def _reads_expression(gold: str) -> bool:
    """Signs of algebra, brackets that close, no prose."""
    gold = _UNIT.sub("", gold[:LONGEST_EXPRESSION])
    closed = gold.count("{") == gold.count("}") and gold.count("(") == gold.count(")")
    return closed and _SYMBOLIC.search(gold) is not None and not _NO_VALUE.fullmatch(gold) and not _PROSE.search(gold)


def matches_expression(text: str, found: list[Slot], gold: str) -> bool:
    """Same spelling is equal; an equation needs the same left side; then equal normal forms, or what the symbolic judge says."""
    answer = put_forward(text, found)
    if squeezed(answer) == squeezed(gold):
        return True
    if len(answer) > LONGEST_EXPRESSION:
        return False
    (sides, own), (gold_sides, want) = _last_side(answer), _last_side(gold)
    if (gold_sides and sides != gold_sides) or not _TERM.search(own):
        return False
    if ("±" in own) is not ("±" in want) and not re.search(r",|\bor\b|\band\b", own + want):
        return False
    forms = normal_form(own), normal_form(want)
    if None not in forms:
        return forms[0] == forms[1]
    from policyloop.rewards.math_worker import judge

    return judge(own, want)


def _last_side(text: str) -> tuple[str, str]:
    """What stands left of the last `=`, in one spelling, and what stands right of it, without a unit."""
    left, _, right = text.rpartition("=")
    return squeezed(left), _UNIT.sub("", right).strip(" .")


SHAPES = (
    Shape(lambda gold: _CLOCK.fullmatch(gold) is not None, matches_clock),
    Shape(_reads_parts, matches_parts),
    Shape(lambda gold: re.fullmatch(r"\(?[A-Z]\)?\.?", gold) is not None, matches_letter),
    Shape(lambda gold: gold.casefold().strip(" .") in _YES_NO, matches_word),
    Shape(_reads_expression, matches_expression),
)
