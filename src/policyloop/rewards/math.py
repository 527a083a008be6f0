"""Mathematical verification: completion and gold in, True (right), False (wrong) or None (the gold cannot be judged) out.

Stages: scope -> slot -> value -> equality (docs/grading.md). Values are exact fractions: no floats, no tolerance, no evaluation
of model text; linear time, from any thread or process. Golds that are expressions are compared by exact normal forms, and where these
end by a symbolic judge in a process that can be killed.

Example:
    >>> grade("16 - 3 - 4 = 9, so 9 * 2 = 18.\\n#### 18", "18"), grade("The answer is 2/3", "2"), grade("#### 5", "")
    (True, False, None)
"""

from __future__ import annotations

import re
from fractions import Fraction

from policyloop.rewards.answer_shape import SHAPES
from policyloop.rewards.answer_slot import Slot, first_turn, slots, spoken
from policyloop.rewards.answer_text import tidy
from policyloop.rewards.answer_value import LONGEST, Value, candidate, last_number, read, shown, unwrap, value_of
from policyloop.rewards.answer_words import CHINESE, ENGLISH

MOST_SLOTS = 200  # slots, from the last one back, that are looked into
_NUMERIC = re.compile(r"[^\w]*(?:US|USD|Rs\.?)?[^\w]*[\d.\\]")
_NOT_NUMERIC = re.compile(r"[=^√π<>()\[\]]|\\(?!frac)|\d\s*[*×+]")
_NAMED = re.compile(r"\$?\s*[A-Za-z]\s*=\s*(?=[^=]+$)")
_NAMES = re.compile(r"(?<![A-Za-z\\])((?:[A-Za-z]\s*=\s*)+)[^=]*$")  # x = 5, x = y = 5: what the last equation is of
_PAIR = re.compile(r"[\s$]*(?:\\left)?\(\s*-?\d+,\d+(?:,\d+)*\s*(?:\\right)?\)")  # (1,200) is a pair
_SENTENCE_END = re.compile(r"[.。!?](?:\s|$)")
_BOXES_JOINED = re.compile(r"[}\s$.]*(?:\\text\s*\{)?\s*(?:or|and|,|或|和)\s*\}?[\s$]*\\f?box(?:ed)?\s*\{$", re.IGNORECASE)


def grade(completion: str, gold: str) -> bool | None:
    """Whether `completion` answers `gold`. Never raises; under a second and bounded memory on hostile input."""
    gold = gold_text(gold) if isinstance(gold, str) else ""
    if not gold:
        return None
    text, found = _read_slots(completion)
    if (value := gold_value(gold)) is not None:
        own = answer_value(text, found)
        return own is not None and equal(own, value) and not _of_another(gold, text, found)
    bare = unwrap(gold)
    for shape in SHAPES:
        if shape.reads(bare):
            return shape.matches(text, found, bare)
    return None


def extract(completion: str) -> str | None:
    """The answer as the grader reads it: the number it compares, else the words of the last slot; None where there is no answer."""
    text, found = _read_slots(completion)
    if (value := answer_value(text, found)) is not None:
        return shown(value)
    held = (slot for slot in reversed(found[-MOST_SLOTS:]) if slot.kind != "cut" and not slot.heading and not slot.talks)
    return next((_SENTENCE_END.split(unwrap(slot.body(LONGEST)), maxsplit=1)[0] for slot in held), None)


def parse_number(text: str) -> Fraction | None:
    """The one number that a short text puts forward, exactly; 70% is 7/10."""
    value = read(text)
    return None if value is None else value.number / 100 if value.percent else value.number


def _read_slots(completion: str) -> tuple[str, list[Slot]]:
    """The text that counts, and its slots: with what they hold, or cut off."""
    text, found = first_turn(tidy(spoken(completion if isinstance(completion, str) else "")))
    return text, [s for s in found if s.kind == "cut" or not s.empty]


def gold_text(gold: str) -> str:
    """The gold itself, where the file holds a solution that ends in it."""
    gold = tidy(gold.rpartition("####")[2])
    held = slots(gold)
    return (held[-1] if held else gold).strip()


def gold_value(gold: str) -> Value | None:
    """A gold that is a number, with at most a name, a currency, a unit or a percent sign around it."""
    bare = _NAMED.sub("", unwrap(gold))
    if CHINESE.fullmatch(bare) or ENGLISH.fullmatch(bare):
        return read(bare)
    if not _NUMERIC.match(bare) or "," in re.sub(r"(?<=\d),(?=\d{2,3})", "", bare):
        return None
    if _NOT_NUMERIC.search(bare) and not re.fullmatch(r"\(-?[\d./]+\)|-?[\d.,/]+", bare):
        return None
    return read(bare)


def answer_value(text: str, found: list[Slot]) -> Value | None:
    """The last well-formed slot decides. What only talks is no slot; without any, the last number, unless a slot was cut off.

    None: no single number.
    """
    end, cut = len(text.rstrip()), False
    for at in range(len(found) - 1, max(-1, len(found) - 1 - MOST_SLOTS), -1):
        slot, body = found[at], found[at].body(LONGEST)
        if slot.kind == "cut":
            cut = True
            continue
        if _joined_boxes(text, found, at) or _PAIR.match(body):
            return None
        if not slot.heading and (put_forward := candidate(body)) is not None:
            return value_of(put_forward, in_math=slot.kind == "box")
        if slot.kind in ("box", "tag") or (slot.kind == "hash" and slot.end >= end and re.search(r"\d", body)):
            return last_number(body)  # an answer in a sentence
    return None if cut else last_number(text) or _numeral(text)


def _numeral(text: str) -> Value | None:
    """A text that is a numeral in words and nothing else."""
    bare = unwrap(text[:100]).strip(" .。")
    return read(bare) if len(text) < 100 and (CHINESE.fullmatch(bare) or ENGLISH.fullmatch(bare)) else None


def _of_another(gold: str, text: str, found: list[Slot]) -> bool:
    """x = 5 is no answer to y = 5. An answer without a name is one, and so is a chain that names it (x = y = 5)."""
    asked = _names(unwrap(gold))
    held = [slot.body(LONGEST) for slot in found[-MOST_SLOTS:] if slot.kind != "cut" and not slot.heading]
    lines = [line for line in (held[-1] if held else text[-LONGEST:]).splitlines() if line.strip()]
    said = _names(_SENTENCE_END.split(unwrap(lines[-1]), maxsplit=1)[0]) if asked and lines else set()
    return bool(said) and not asked & said


def _names(equation: str) -> set[str]:
    found = _NAMES.search(equation[-200:])
    return {letter.casefold() for letter in re.findall(r"[A-Za-z]", found[1])} if found else set()


def _joined_boxes(text: str, found: list[Slot], at: int) -> bool:
    """\\boxed{5} or \\boxed{6}"""
    if at == 0 or found[at].kind != "box" or found[at - 1].kind != "box":
        return False
    return _BOXES_JOINED.match(text, found[at - 1].end, found[at].start) is not None


def equal(answer: Value, gold: Value) -> bool:
    """Exact. 70% equals 70 (a bare gold) and 0.7; 0.7 does not equal a bare 70."""
    if gold.percent:
        return answer.number == gold.number or (not answer.percent and answer.number * 100 == gold.number)
    return answer.number == gold.number or (answer.percent and answer.number == gold.number * 100)
