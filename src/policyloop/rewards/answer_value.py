"""A piece of answer text to an exact value. No floats, no evaluation: text that is not one number has no value.

In: what a slot holds ("$1,234.50 dollars", "\\\\frac{2}{3}", "二十五个"). Out: `Value` (a Fraction, with a percent mark) or None.

Example:
    >>> read("**$1,234.50**").number
    Fraction(2469, 2)
    >>> read("5 or 6") is None
    True
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from policyloop.rewards.answer_text import unwrap
from policyloop.rewards.answer_words import CHINESE, ENGLISH, chinese, english

__all__ = ["Value", "candidate", "last_number", "read", "unwrap", "value_of"]

MOST_DIGITS = 20_000
MOST_EXPONENT = 1_000
LONGEST = MOST_DIGITS + 100  # characters of one candidate
TAIL = 30_000  # characters from the end in which a text without a slot puts its answer


@dataclass(frozen=True, slots=True)
class Value:
    number: Fraction
    percent: bool = False


def shown(value: Value) -> str:
    """18, 2/3, 70%; a number of thousands of digits is not shown in full."""
    top, bottom = value.number.numerator, value.number.denominator
    if max(top.bit_length(), bottom.bit_length()) > 10_000:
        return "a number of more than 3,000 digits"
    return f"{top}{f'/{bottom}' if bottom != 1 else ''}{'%' if value.percent else ''}"


# --- numbers in digits ------------------------------------------------------------------------------------------------------

_GROUPED = r"[1-9]\d{0,2}(?:(?:,\d{3}(?!\d))++|(?:\ \d{3}(?![\d/]))++|(?:['’]\d{3}(?!\d))++|(?:_\d{3}(?!\d))++)"
_INDIAN = r"[1-9]\d?(?:,\d{2}(?!\d))++,\d{3}(?!\d)"
_DECIMAL = rf"(?:(?:{_GROUPED}|{_INDIAN}|\d++)(?:\.\d++)?|(?<![.\d])\.\d++)"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]\s*)?
    (?:(?P<power>10(?=\s*\^))
      |(?P<before>\d++)?\s*(?=\\frac)
      |(?P<whole>\d++)\s+(?P<n>\d++)\s*/\s*(?P<d>\d++)
      |(?P<top>{_DECIMAL})\s*/\s*(?P<bottom>{_DECIMAL})
      |(?P<decimal>{_DECIMAL}))
    (?:[eE](?P<e>[+-]?\d++)(?![A-Za-z]))?""",
    re.VERBOSE,
)
_TEN_TO = re.compile(r"\s*(?:\^|[×x*·]\s*10\s*\^)\s*(?:\{\s*([+-]?\d++)\s*\}|([+-]?\d++))")
_FRAC = re.compile(r"\\frac\s*")
_DIGIT = re.compile(r"\s*(\d)")
_CURRENCY = r"(?:(?<![A-Za-z])(?:USD|RMB|CNY|EUR|GBP|INR|CHF|Rs\.?)|[$€£¥₹₩元])"


class Found(NamedTuple):
    number: Fraction
    end: int


def number_at(text: str, start: int = 0) -> Found | None:
    """The number that begins at `start`; None where there is none, or none with a value (1/0, a monstrous exponent)."""
    m = _NUMBER.match(text, start)
    if m is None:
        return None
    g, end = m.groupdict(), m.end()
    if g["decimal"] or g["top"] or g["n"]:
        top, bottom, whole = g["decimal"] or g["top"] or g["n"], g["bottom"] or g["d"] or "1", g["whole"] or "0"
        value = _mixed(whole, _decimal(top), _decimal(bottom))
    elif g["power"]:
        value = Fraction(1) if _TEN_TO.match(text, end) else None
    elif (tex := _tex_fraction(text, end)) is not None:
        value, end = _mixed(g["before"] or "0", tex.number, Fraction(1)), tex.end
    else:
        return None
    if (ten := _TEN_TO.match(text, end)) is not None and not g["e"] and (g["power"] or not ten[0].lstrip().startswith("^")):
        value, end = _scaled(value, ten[1] or ten[2]), ten.end()
    value = _scaled(value, g["e"]) if g["e"] else value
    return None if value is None else Found(-value if (g["sign"] or "").startswith("-") else value, end)


def _mixed(whole: str, top: Fraction | None, bottom: Fraction | None) -> Fraction | None:
    w = _integer(whole)
    return None if w is None or top is None or not bottom else w + top / bottom


def _decimal(text: str) -> Fraction | None:
    whole, _, rest = text.partition(".")
    a, b = _integer(whole or "0"), _integer(rest or "0")
    return None if a is None or b is None else Fraction(a) + (Fraction(b, 10 ** len(rest)) if b else 0)


def _integer(text: str) -> int | None:
    """An integer from its digits, bounded, whatever the interpreter's own limit on digits is."""
    bare = re.sub(r"[,_'’ ]", "", text)
    if len(bare) > MOST_DIGITS:
        return None
    value = 0
    for at in range(0, len(bare), 4000):
        piece = bare[at : at + 4000]
        value = value * 10 ** len(piece) + int(piece)
    return value


def _scaled(value: Fraction | None, exponent: str) -> Fraction | None:
    if value is None or len(exponent) > 5 or abs(int(exponent)) > MOST_EXPONENT:
        return None
    return value * Fraction(10) ** int(exponent)


def _tex_fraction(text: str, start: int, depth: int = 0) -> Found | None:
    r"""\frac{1}{2}, \frac12, and fractions of fractions."""
    m = _FRAC.match(text, start)
    if m is None or depth > 3:
        return None
    top = _operand(text, m.end(), depth)
    bottom = None if top is None else _operand(text, top.end, depth)
    return None if top is None or bottom is None or not bottom.number else Found(top.number / bottom.number, bottom.end)


def _operand(text: str, start: int, depth: int) -> Found | None:
    if digit := _DIGIT.match(text, start):
        return Found(Fraction(int(digit[1])), digit.end())
    if (opened := re.compile(r"\s*\{\s*").match(text, start)) is None:
        return None
    if text.startswith("\\frac", opened.end()):
        inner = _tex_fraction(text, opened.end(), depth + 1)
    elif (m := re.compile(rf"[+-]?{_DECIMAL}").match(text, opened.end())) is not None:
        value = _decimal(m[0].lstrip("+-"))
        inner = None if value is None else Found(-value if m[0].startswith("-") else value, m.end())
    else:
        return None
    closed = None if inner is None else re.compile(r"\s*\}").match(text, inner.end)
    return None if inner is None or closed is None else Found(inner.number, closed.end())


# --- what may stand before and behind a number ------------------------------------------------------------------------------

_LEAD = re.compile(
    r"""(?:[\s:=*>"'“”‘’«(\[{#|、,]|\.{2,}
    |(?:about|approximately|approx\.?|around|roughly|exactly|precisely|just|only|simply|clearly|equal\ to|equals|in\ total|a\ total\ of
    |total\ of|that\ is|therefore|thus|hence|so|now|then|is|are|was|be|of|the|number|either|between|from|it's|a(?=\s+(?:hundred|thousand|million)))\b
    |约为|大约|约|共有|一共|总共|共|应该|应|分别|是|为|等于)*+""",
    re.VERBOSE | re.IGNORECASE,
)
_CHOICE = re.compile(r"[A-H]\s*[).:]\s*(?=\S)")  # (B) 5: the label of a choice
_MINUS = re.compile(rf"(?:minus|negative|负)\s*(?=[\d$€£¥.\\]|{ENGLISH.pattern})", re.IGNORECASE)
_MONEY = re.compile(rf"(?P<a>[+-])?\s*{_CURRENCY}\s*(?P<b>[+-])?\s*(?=[\d.\\])", re.IGNORECASE)
_STARTS = re.compile(
    r"第\s?\d|[+-]?\s*(?:[\d√π±<>≤≥≠]|\.\d|\\(?:frac|sqrt|pi|infty|log|ln|sin|cos|tan|pm|leq?|geq?|lt|gt)(?![a-z])"
    r"|[A-Za-z](?![A-Za-z'’])\s*(?:$|[.+\-*/^)=,<>≤≥≠]|\\(?:leq?|geq?|lt|gt|neq?|in)(?![a-z])))"
)

_SCALE = {
    "百": 100,
    "千": 10**3,
    "万": 10**4,
    "亿": 10**8,
    "k": 10**3,
    "hundred": 100,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_SCALED = re.compile(
    r"(k)(?![A-Za-z])|\s*(百(?!分)|千(?![克米瓦卡])|万|亿|(?:hundred|thousand|million|billion|trillion)\b)", re.IGNORECASE
)
_PERCENT = re.compile(r"\s*(?:%|percent(?:age\s+points?)?\b|per\s+cent\b|pct\b|个?百分点)", re.IGNORECASE)
_UNIT = r"(?:\s*[^\W\d_]+(?:\s*\^\s*\{?-?\d\}?)?(?:\s*/\s*[^\W\d_]+)?\.?){0,3}?"
_AND = (
    r"(?:[,;、~&|-]\s*)?(?:(?:\b(?:or|and|to|through|times|plus|minus|divided\s+by)\b)(?:\s*(?:maybe|perhaps|possibly|about|even)\b)?"
    r"|或者?|还是|和|与|以?及|至|到)"
)
_JOINED = re.compile(
    rf"{_UNIT}\s*(?:(?:{_AND}|[,;、~&|-])\s*{_CURRENCY}?\s*(?:[+-]?\.?\d|\\frac)|{_AND}\s*(?:{ENGLISH.pattern}|[一二两三四五六七八九十百]))",
    re.IGNORECASE,
)
_COMPOUND = re.compile(
    r"\s*(?:hours?|hrs?|h|minutes?|mins?|feet|foot|ft|pounds?|lbs?|dollars?|years?|months?|weeks?|days?|meters?|metres?|yards?|degrees|kg|km|m)"
    r"\.?\s+\d[\d.]*\s*[A-Za-z]"
    r"|\s*(?:小时|分钟|点钟?|个月|厘米|千克|公斤|[时分天元角米年周])\s*\d",
    re.IGNORECASE,
)
_PART = r"(?:half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?)\b"
_AND_A_PART = re.compile(rf"{_UNIT}\s*and\s+(?:a|one|two|three)\s+{_PART}", re.IGNORECASE)
_OF_A_WHOLE = re.compile(rf"[\s-]*{_PART}", re.IGNORECASE)
_NO_NUMBER = re.compile(
    r"(?:st|nd|rd|th)(?![A-Za-z])"  # an ordinal
    r"|:\d|\s:\s?\d|\.\d|,\d|['’′]\s?\d|\s*‰|\.[eE][+-]?\d"  # a time, a version, a broken grouping, a broken exponent
    r"|\s*(?:[*×÷^+±·√π]|/(?!\s*[A-Za-z])|\\(?:sqrt|pi|frac|log|ln|sin|cos|tan|theta|alpha|infty)|-\s*[\d.($\\])"  # arithmetic
    r"|\(\s*[\d\-.\\]|\s?[xyznπ](?![A-Za-z])|[ei](?![A-Za-z])|\s[ei]\s*(?:$|[.,;:)\]}$])"  # a product, a variable
    r"|\s*[乘加减除]以?\s*[\d一二两三四五六七八九十]|\s*(?:个|小时|天|年)?半"
    r"|\s+[+-]?[$€£¥]?\d"  # a second number
)
_SHARE_OF = re.compile(r"\s*of\s+[$€£¥]?\d", re.IGNORECASE)  # 50% of 80
_EQUALS = re.compile(r"(?<=[\w)%])\s?(?:\bequals\b|\bis equal to\b|等于)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?!\d)|[。!?！？\n]")
_ASIDE = re.compile(r"[.!?]\s(?=[A-Z])|[。\n]|\b(?i:because|since|as|where|due\sto|given|if|when)\b|因为")
_BARE_NUMBER = re.compile(rf"[\s(]*[+-]?{_CURRENCY}?{_DECIMAL}[\s(]*")
_UNKNOWN = re.compile(r"(?:^|[\s,;])([A-Za-z])\s*$")
_SECOND = re.compile(r"\S\s*(?P<link>[,;]|\band\b|\bor\b|或|和)\s*(?P<name>[A-Za-z])\s*$")


def read(text: str, in_math: bool = False) -> Value | None:
    """The one number that `text` puts forward first, or None: no number, several, a time, an ordinal, arithmetic left undone.

    in_math: an exclamation mark is a factorial, not a cry.
    """
    return value_of(_candidate(unwrap(text[:LONGEST])), in_math)


def candidate(text: str) -> str | None:
    """Where something like a value comes straight away, be it one number or not; None where `text` only talks."""
    text = _candidate(unwrap(text[:LONGEST]))
    return text if _straight(text) else None


def value_of(text: str, in_math: bool = False) -> Value | None:
    """The value of what `candidate` found."""
    sign = 1
    if m := _MINUS.match(text):
        sign, text = -1, text[m.end() :]
    if m := _MONEY.match(text):
        sign, text = (-1 if "-" in (m["a"], m["b"]) else sign), text[m.end() :]
    if (found := number_at(text)) is not None:
        return _with_tail(sign * found.number, text[found.end :], in_math)
    for pattern, numeral in ((CHINESE, chinese), (ENGLISH, english)):
        if (m := pattern.match(text)) is not None and (number := numeral(m[0])) is not None:
            tail = ("%" if m[0].startswith("百分之") else " " * (pattern is ENGLISH)) + text[m.end() :]
            return None if _OF_A_WHOLE.match(tail) else _with_tail(sign * number, tail, in_math)
    return None


def _straight(text: str) -> bool:
    return any(p.match(text) for p in (_STARTS, _MINUS, _MONEY, CHINESE, ENGLISH))


def _candidate(text: str) -> str:
    """Where the value would begin: behind opening words, and right of the last `=` where the first clause is an equation."""
    text = _EQUALS.sub(" =", _bare(text))
    aside = _ASIDE.search(text)
    first = text[: aside.start()] if aside else text
    if "=" not in first and _straight(first):
        return text
    right, left = _bare(_right_of_equals(text)), first.partition("=")[0]
    return left if _straight(left) and value_of(right) is None and value_of(left) is not None else right  # 18 = 9 * 2


def _bare(text: str) -> str:
    text = text[_LEAD.match(text).end() :]  # type: ignore[union-attr]  # matches the empty text too
    label = _CHOICE.match(text)
    return text[_LEAD.match(text, label.end()).end() :] if label else text  # type: ignore[union-attr]


def _right_of_equals(text: str) -> str:
    """Right of the last `=`, unless nothing is there. Two unknowns at once (x = 5, y = 3) are no single answer."""
    parts = [p for p in re.split(r"(?<![<>!])=", text) if p.strip()]
    for left, middle in list(itertools.pairwise(parts[:-1]))[-20:]:
        name, second = _UNKNOWN.search(left[-3:]), _SECOND.search(middle[-12:])
        if name and second and (second["link"] not in ",;" or second["name"] != name[1]):
            return name[1] + "="
    if len(parts) > 1 and _BARE_NUMBER.fullmatch(parts[-2]) and value_of(_bare(parts[-1])) is None:
        return parts[-2].strip()  # 18 = 9 * 2
    return parts[-1].strip() if parts else ""


def _with_tail(value: Fraction, tail: str, in_math: bool) -> Value | None:
    """Judge what follows the number: a percent sign, a scale word, a unit; or something that makes it no single number."""
    while scaled := _SCALED.match(tail):
        value, tail = value * _SCALE[scaled[0].strip().lower()], tail[scaled.end() :]
    if percent := _PERCENT.match(tail):
        tail = tail[percent.end() :]
    if _NO_NUMBER.match(tail) or (in_math and tail.lstrip().startswith("!")) or (percent and _SHARE_OF.match(tail)):
        return None
    sentence = (tail[: end.start()] if (end := _SENTENCE_END.search(tail)) else tail)[:200]
    if _JOINED.match(sentence) or _COMPOUND.match(sentence) or _AND_A_PART.match(sentence):
        return None
    return Value(value, percent is not None)


# --- no slot ----------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    rf"""(?P<passed>(?<![\\A-Za-z])(?!{_CURRENCY}\s*\d)[A-Za-z]++-?\d[A-Za-z\d.]*+
      |\b(?:step|part|question|problem)\s+\d++
      |第\s?\d++
      |(?<=\n)[\#*>\ ]*\d++[.)]\ (?=\S)
      |\d++(?::\d++)+|\d{{1,4}}-\d{{1,2}}-\d{{1,4}}(?!\d)|\d++/\d++/\d[\d/]*+|\d++(?:\.\d++){{2,}}|\d++(?:st|nd|rd|th)(?![A-Za-z]))
    |(?P<number>(?:{_CURRENCY}\s?-?\s?)?(?:{_DECIMAL}\s*/\s*{_DECIMAL}|\d++\s+\d++\s*/\s*\d++|{_DECIMAL})
      (?:[eE][+-]?\d++(?![A-Za-z])|\s*[×x*·]\s*10\s*\^\s*\{{?[+-]?\d++\}}?|(?<=10)\s*\^\s*\{{?[+-]?\d++\}}?)?
      |\\frac(?:\s*\{{[^{{}}]{{1,40}}\}}\s*\{{[^{{}}]{{1,40}}\}}|\s*\d\s*\d))""",
    re.VERBOSE | re.IGNORECASE,
)
_PASS_BEFORE = re.compile(
    r"(?:\b(?:not|never|nicht|pas|não|не|no\s+es)|n't|不是|≠)\s*(?:an?\s|the\s)?$|[A-Za-z]\s?\^\s?\{?$|_\{?$|[A-Za-z]-$",
    re.IGNORECASE,
)
_UNDONE_BEFORE = re.compile(
    r"(?:[\d)}\]%]|(?<![A-Za-z])[xyzn])\s*[*×÷/^+±-]\s*\(?$|(?:[×÷/^±√]|\\sqrt\s*(?:\[\d\])?\s*[{(]?)\s*$|--$|\\frac\{$"
)
_SIGN_BEFORE = re.compile(r"(?:^|[\s(\[{=:,>])-$|[=(:]\s?-\s?$")
_LINK = re.compile(rf"{_UNIT}\s*(?:{_AND}|[~&-])\s*", re.IGNORECASE)
_ONLY_NUMBERS = re.compile(r"[\s\d.,;]+")
_EQUATION = re.compile(r"[A-Za-z]\s*[+\-]|[+\-]\s*\d*[A-Za-z]\b")


def _linked(text: str, end: int, start: int) -> bool:
    """5 or 6, 5 apples and 6 pears; not across lines."""
    return start - end < 60 and "\n" not in text[end:start] and _LINK.fullmatch(text, end, start) is not None


def last_number(text: str) -> Value | None:
    """No slot: the last number that stands for itself. A time, a date, an ordinal, a step's number, a number said not to be the
    answer are passed over; arithmetic left undone and joined candidates are no answer."""
    text = unwrap(text[-TAIL:])
    last: re.Match[str] | None = None
    joined = False
    for m in _TOKEN.finditer(text):
        before = text[max(0, m.start() - 40) : m.start()]
        if m["number"] is None or _PASS_BEFORE.search(before):
            continue
        joined = last is not None and _linked(text, last.end(), m.start())
        last = m
    if last is None or joined:
        return None
    before = text[max(0, last.start() - 40) : last.start()]
    line = text[text.rfind("\n", 0, last.start()) + 1 : last.start()]
    if _UNDONE_BEFORE.search(before) or (line[-200:].strip() and _ONLY_NUMBERS.fullmatch(line[-200:])):
        return None
    value = read(
        ("-" if _SIGN_BEFORE.search(before) else "")
        + re.split(r"[=\n]", text[last.start() : last.start() + LONGEST], maxsplit=1)[0]
    )
    unsolved = value is not None and value.number == 0 and before.rstrip().endswith("=") and _EQUATION.search(before)
    return None if unsolved else value
