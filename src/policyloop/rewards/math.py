"""Mathematical verification: completion and gold in, True (right), False (wrong) or None (the gold cannot be judged) out.

Stages: scope -> slot -> value -> equality (cases R0-R7, docs/grading.md). Values are exact fractions: no floats, no tolerance, no evaluation
of model text; linear time, from any thread or process. Golds that are expressions go to a symbolic judge in a process that can be killed.

Example:
    >>> grade("16 - 3 - 4 = 9, so 9 * 2 = 18.\\n#### 18", "18"), grade("The answer is 2/3", "2"), grade("#### 5", "")
    (True, False, None)
"""

from __future__ import annotations

import re
from fractions import Fraction

from policyloop.rewards.answer_slot import scope, slots
from policyloop.rewards.answer_value import Value, last_number, read, unwrap

_LETTER = re.compile(r"\s*\(?\s*([A-Za-z])\s*\)?\s*(?:[.):,。]|$|\s)")
_TUPLE = re.compile(r"^\s*([(\[{])(.*)([)\]}])\s*\.?\s*$", re.DOTALL)
_SYMBOLIC = re.compile(r"\\[a-zA-Z]+|[=^√π<>]|[a-zA-Z0-9)]\s*[*/+]\s*[(a-zA-Z0-9]|\d[a-z]\b|^[a-z]$")
_CLOCK = re.compile(r"\d{1,2}(?::\d{2}){1,2}")
_WORDS = frozenset({"yes", "no", "true", "false"})


def grade(completion: str, gold: str) -> bool | None:
    """Whether `completion` answers `gold`. Never raises; under a second and bounded memory on hostile input."""
    gold = gold.rpartition("####")[2].strip() if isinstance(gold, str) else ""
    if not gold:
        return None
    text = scope(completion)
    found = slots(text)
    if (value := gold_value(gold)) is not None:
        return _number_matches(text, found, value)
    bare = unwrap(gold)
    if _CLOCK.fullmatch(bare):
        own = _CLOCK.search(unwrap(found[-1] if found else text.strip().rsplit("\n", 1)[-1]))
        return own is not None and [int(n) for n in own[0].split(":")] == [int(n) for n in bare.split(":")]
    if parts := _parts(bare):
        return _tuple_matches(found, text, bare, parts)
    if re.fullmatch(r"\(?[A-Za-z]\)?\.?", bare) and bare.strip("().").isupper():
        return _letter(found, text) == bare.strip("().").upper()
    if bare.casefold().strip(".") in _WORDS:
        return any(_words(f) == bare.casefold().strip(".") for f in found[-1:]) or (not found and _words(text) == bare.casefold().strip("."))
    return _expression_matches(found, text, gold) if _SYMBOLIC.search(gold) else None


def extract(completion: str) -> str | None:
    """The answer text as the grader reads it: the last slot that holds something, else the last number."""
    text = scope(completion)
    found = slots(text)
    for body in reversed(found):
        if read(body) is not None or not re.search(r"\d", body):
            return unwrap(_inner(body)).strip(" .")
    value = last_number(text)
    return None if value is None else _show(value)


def parse_number(text: str) -> Fraction | None:
    """One number from a short text; a percentage is divided by 100."""
    value = read(text)
    return None if value is None else value.number / 100 if value.percent else value.number


def gold_value(gold: str) -> Value | None:
    """A gold that is a number, with at most a currency, a unit or a percent sign around it."""
    bare = unwrap(gold)
    if not re.match(r"[^\w]*(?:US|USD|Rs\.?)?[^\w]*[\d.\\]", bare) or "," in re.sub(r"(?<=\d),(?=\d{2,3})", "", bare):
        return None
    if re.search(r"[=^√π<>()\[\]]|\\(?!frac)|\d\s*[*×+]", bare) and not re.fullmatch(r"\(?-?[\d.,/]+\)?", bare):
        return None
    return read(gold)


def _number_matches(text: str, found: list[str], gold: Value) -> bool:
    """The last well-formed slot decides; without any slot, the last number."""
    for body in reversed(found):
        value = read(_inner(body))
        if value is not None:
            return equal(value, gold)
        if _tries(body):
            return False
    return (value := last_number(text)) is not None and not _shaped(text) and equal(value, gold)


def _inner(body: str) -> str:
    """A slot inside a slot: \\boxed{\\text{The answer is 460}}, #### Answer: 18."""
    nested = slots(unwrap(body) if "\\text" in body else body)
    return nested[-1] if nested else body


def _tries(body: str) -> bool:
    """A slot that holds something which is no single number is an answer all the same: a wrong one, not a missing one."""
    bare = unwrap(_inner(body))
    return bool(re.search(r"\d|\\|√|π", bare)) or bool(re.match(r"[A-Za-z]\b|[A-Z]$", bare)) or len(bare.split()) <= 6


def _shaped(text: str) -> bool:
    """The text ends in a formula that is no number: an equation set to 0, roots, plus-minus."""
    last = text.rstrip().rsplit("\n", 1)[-1]
    return bool(re.search(r"\\(?:sqrt|pm)|±|√|\d[xyz]\b[^=]*=", last[-400:]))


def equal(answer: Value, gold: Value) -> bool:
    """Exact. 70% equals 70 (a bare gold) and 0.7; 0.7 does not equal a bare 70."""
    if gold.percent:
        return answer.number == gold.number or (not answer.percent and answer.number * 100 == gold.number)
    return answer.number == gold.number or (answer.percent and answer.number == gold.number * 100)


def _parts(bare: str) -> list[str] | None:
    """A tuple or interval, split at its top-level commas; None for anything else."""
    m = _TUPLE.match(bare)
    if m is None or "," not in m[2]:
        return None
    parts, depth = [""], 0
    for c in m[2]:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [p.strip() for p in parts]


def _tuple_matches(found: list[str], text: str, gold: str, parts: list[str]) -> bool:
    """Same brackets, same number of parts, each part equal."""
    bare = unwrap(found[-1] if found else text.strip().rsplit("\n", 1)[-1])
    bare = re.sub(r"(?<=[)\]}])\s*\.$", "", bare)
    own = _parts(bare)
    if own is None or len(own) != len(parts) or (bare.strip()[0], bare.strip()[-1]) != (gold.strip()[0], gold.strip()[-1]):
        return False
    return all(_same(a, b) for a, b in zip(own, parts, strict=True))


def _same(a: str, b: str) -> bool:
    x, y = read(a), read(b)
    return equal(x, y) if x is not None and y is not None else _squeezed(a) == _squeezed(b)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+|\\(?:left|right)", "", unwrap(text)).rstrip(".")


def _letter(found: list[str], text: str) -> str | None:
    """A choice letter from the last slot, or a text that is nothing else."""
    for body in reversed(found):
        m = _LETTER.match(unwrap(_inner(body)))
        if m is not None:
            return m[1].upper()
    m = re.fullmatch(r"\s*\(?([A-Z])\)?[.)]?\s*", unwrap(text))
    return None if m is None else m[1]


def _words(text: str) -> str:
    return re.sub(r"[^a-z]+", " ", unwrap(text).casefold()).strip().split(" ")[0]


def _expression_matches(found: list[str], text: str, gold: str) -> bool | None:
    """Same spelling is equal; an equation needs the same sides; everything else is for the symbolic judge."""
    answer = found[-1] if found else text.strip().rsplit("\n", 1)[-1]
    if _squeezed(answer) == _squeezed(gold):
        return True
    if "=" in gold or ("=" in answer and not found) or not answer.strip() or len(answer) > 500:
        return False
    from policyloop.rewards.math_worker import judge

    return judge(answer.rpartition("=")[2], gold)


def _show(value: Value) -> str:
    n = value.number
    shown = str(n.numerator) if n.denominator == 1 and n.numerator.bit_length() < 10_000 else f"{n.numerator}/{n.denominator}"
    return shown + ("%" if value.percent else "")
