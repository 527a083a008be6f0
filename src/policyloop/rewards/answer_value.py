"""A piece of answer text to an exact value. No floats, no evaluation: text that is not one number has no value.

In: what a slot holds ("$1,234.50 dollars", "\\\\frac{2}{3}", "二十五个"). Out: `Value` (a Fraction, with a percent mark) or None.

Example:
    >>> read("**$1,234.50**").number
    Fraction(2469, 2)
    >>> read("5 or 6") is None
    True
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 4_000  # characters of one candidate
MOST_DIGITS = 20_000
MOST_EXPONENT = 1_000


@dataclass(frozen=True, slots=True)
class Value:
    number: Fraction
    percent: bool = False


# --- one spelling for everything --------------------------------------------------------------------------------------------

_SUPERSCRIPT = {ord(c): d for c, d in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True)}
_SUPERS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff\u202a-\u202e]")
_DASHES = dict.fromkeys(map(ord, "−‒–﹣－"), "-")
_SPACES = dict.fromkeys([0xA0, 0x2007, 0x2009, 0x202F, 0x3000], " ")


def plain(text: str) -> str:
    """Full-width digits and punctuation, superscripts, vulgar fractions, minus signs and blanks in one spelling each."""
    text = _INVISIBLE.sub("", text.translate(_SPACES).translate(_DASHES))
    text = _SUPERS.sub(lambda m: "^" + m[0].translate(_SUPERSCRIPT), text)
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[0]).replace("\u2044", "/") + " ", text)
    return unicodedata.normalize("NFKC", text).replace("\u2044", "/").translate(_DASHES)


_COMMANDS = [
    (re.compile(r"\\(?:d|t|c)frac\b"), r"\\frac"),
    (re.compile(r"\{,\}|\\,(?=\d{3})"), ","),
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad|[,;:! ])"), " "),
    (re.compile(r"\\[()\[\]]|\$|\\\$"), " "),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|\\circ|°"), " degrees "),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-zA-Z])"), "×"),
    (re.compile(r"\\div(?![a-zA-Z])"), "÷"),
    (re.compile(r"\\(?:pm|mp)(?![a-zA-Z])"), "±"),
    (re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])"), "="),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"</?[a-zA-Z][^<>]{0,80}>"), " "),
    (re.compile(r"\*\*+|__+|`+|~~"), " "),
]
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mathsf|operatorname|mbox|boxed|fbox|underline|bold)\s*\{([^{}]*)\}")


def unwrap(text: str) -> str:
    """LaTeX, HTML and Markdown around the answer taken off; what is left is plain text with \\frac, \\sqrt and the like."""
    text = plain(text)
    for _ in range(4):
        inner = _WRAPPED.sub(r" \1 ", text)
        if inner == text:
            break
        text = inner
    for pattern, replacement in _COMMANDS:
        text = pattern.sub(replacement, text)
    return text.strip()


# --- numbers ----------------------------------------------------------------------------------------------------------------

_GROUPED = r"\d{1,3}(?:(?:,\d{2})*,\d{3}|(?:[ '_]\d{3})+(?![\d/]))(?!\d)"
_DECIMAL = rf"(?:(?:{_GROUPED}|\d+)(?:\.\d+)?|\.\d+)"
_FRACTION = re.compile(r"\\frac\s*(?:\{\s*(-?\d+)\s*\}\s*\{\s*(-?\d+)\s*\}|(\d)\s*(\d))")
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]\s*)?
    (?:(?P<whole>\d+)\s*(?P<mixed>\\frac\s*\{{\s*\d+\s*\}}\s*\{{\s*\d+\s*\}})
      |(?P<whole2>\d+)\s+(?P<mix_n>\d+)\s*/\s*(?P<mix_d>\d+)
      |(?P<tex>\\frac\s*(?:\{{\s*-?\d+\s*\}}\s*\{{\s*-?\d+\s*\}}|\d\s*\d))
      |(?P<frac_n>{_DECIMAL})\s*/\s*(?P<frac_d>{_DECIMAL})
      |(?P<decimal>{_DECIMAL}))
    (?:[eE](?P<exp>[+-]?\d+)|\s*[×x*]\s*10\s*\^\s*\{{?\s*(?P<ten>[+-]?\d+)\s*\}}?)?""",
    re.VERBOSE,
)
_TEN_POWER = re.compile(r"(?P<sign>[+-]\s*)?10\s*\^\s*\{?\s*(?P<ten>[+-]?\d+)\s*\}?")
_CURRENCY = r"(?:US\$|USD|RMB|CNY|EUR|GBP|Rs\.?|[$€£¥₹₩元])"
_LEAD = re.compile(
    r"""(?:[\s:=>\-]*(?:\*\s)?(?:about|approximately|approx\.?|around|roughly|exactly|just|only|simply|equal\ to|equals|a\ total\ of
    |total\ of|that\ is|therefore|thus|now|then|is|be|of|the\ number|约为|大约|约|共有|一共|总共|共|是|为|等于|:|=|\()\s*)*\s*(?=\S)""",
    re.VERBOSE | re.IGNORECASE,
)


def digits(text: str) -> int | None:
    """An integer from its digits, bounded, whatever the interpreter's own limit on digits is."""
    bare = re.sub(r"[,_' ]", "", text)
    if len(bare) > MOST_DIGITS:
        return None
    if len(bare) <= 4000:
        return int(bare or "0")
    value = 0
    for at in range(0, len(bare), 4000):
        piece = bare[at : at + 4000]
        value = value * 10 ** len(piece) + int(piece)
    return value


def decimal(text: str) -> Fraction | None:
    whole, _, rest = text.partition(".")
    a, b = digits(whole or "0"), digits(rest or "0")
    return None if a is None or b is None else Fraction(a) + Fraction(b, 10 ** len(rest))


def _divide(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    return None if a is None or b is None or b == 0 else a / b


def _number(m: re.Match[str]) -> Fraction | None:
    """The value of a `_NUMBER` match; None where there is none (1/0, a monstrous exponent)."""
    g = m.groupdict()
    if g["mixed"] or g["tex"]:
        f = _FRACTION.match(g["mixed"] or g["tex"])
        assert f is not None
        value = _divide(decimal_signed(f[1] or f[3]), decimal_signed(f[2] or f[4]))
        value = value if value is None or not g["mixed"] else value + int(g["whole"])
    elif g["mix_n"]:
        value = _divide(decimal(g["mix_n"]), decimal(g["mix_d"]))
        value = None if value is None else value + (digits(g["whole2"]) or 0)
    elif g["frac_n"]:
        value = _divide(decimal(g["frac_n"]), decimal(g["frac_d"]))
    else:
        value = decimal(g["decimal"])
    exponent = g["exp"] or g["ten"]
    if value is not None and exponent:
        value = _scaled(value, exponent)
    return -value if value is not None and (g["sign"] or "").strip() == "-" else value


def decimal_signed(text: str) -> Fraction | None:
    value = decimal(text.lstrip("+-"))
    return -value if value is not None and text.startswith("-") else value


def _scaled(value: Fraction, exponent: str) -> Fraction | None:
    if len(exponent) > 5 or abs(int(exponent)) > MOST_EXPONENT:
        return None
    return value * Fraction(10) ** int(exponent)


# --- numerals in words ------------------------------------------------------------------------------------------------------

_CN_DIGIT = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "俩": 2}
_CN_UNIT = {"十": 10, "百": 100, "千": 1000}
_CN_BIG = {"万": 10**4, "亿": 10**8}
_CN = re.compile("[零〇一二两俩三四五六七八九十百千万亿]+")
_EN = {
    w: i
    for i, w in enumerate(
        ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
    )
} | {w: 10 * (i + 2) for i, w in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])}
_EN_BIG = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_EN_RUN = re.compile(rf"(?:(?:{'|'.join([*_EN, *_EN_BIG])})\b(?:[\s-]+(?:and\s+)?|$)?)+", re.IGNORECASE)


def chinese(text: str) -> int | None:
    """二十五 -> 25, 一万两千 -> 12000, 五 -> 5; a run of digits (二〇二四) is read digit by digit."""
    if all(c in _CN_DIGIT for c in text):
        return int("".join(str(_CN_DIGIT[c]) for c in text)) if len(text) <= 20 else None
    total, section, digit = 0, 0, 0
    for c in text:
        if c in _CN_DIGIT:
            digit = _CN_DIGIT[c]
        elif c in _CN_UNIT:
            section += (digit or 1) * _CN_UNIT[c]
            digit = 0
        else:
            total = (total + section + digit) * _CN_BIG[c] if c == "亿" else total + (section + digit) * _CN_BIG[c]
            section = digit = 0
    return total + section + digit


def english(text: str) -> int | None:
    """twenty-five -> 25, two thousand three hundred and four -> 2304."""
    total, section = 0, 0
    for word in re.findall(r"[a-z]+", text.lower()):
        if word in _EN:
            section += _EN[word]
        elif word == "hundred":
            section = (section or 1) * 100
        elif word in _EN_BIG:
            total += (section or 1) * _EN_BIG[word]
            section = 0
    return total + section


# --- what may stand behind a number -----------------------------------------------------------------------------------------

_SCALE = {"万": 10**4, "亿": 10**8, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALED = re.compile(r"\s*(万|亿|thousand\b|million\b|billion\b|trillion\b)", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(?:%|percent\b|per\s+cent\b|pct\b|个?百分点)", re.IGNORECASE)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)
_CLOCK = re.compile(r"\s*:\s*\d")
_MORE = re.compile(r"\s*(?:[*×÷/^+±]|\\(?:sqrt|pi|frac|cdot|log|ln|sin|cos|tan|pm|theta|alpha|infty)|-\s*[\d.($]|√|π|!|\(\s*[\d\-.\\])")
_VARIABLE = re.compile(r"\s?(?:[xyznπ]|\be\b|\bi\b)(?![A-Za-z])")
_UNIT = r"(?:\s*[^\W\d_]+(?:\s*\^\s*\{?-?\d\}?)?(?:\s*/\s*[^\W\d_]+)?\.?){0,3}?"
_JOINED = re.compile(rf"{_UNIT}\s*(?:,|、|;|或者?|和|与|以?及|至|到|~|\bor\b|\band\b|\bto\b|&|-)\s*{_CURRENCY}?\s*(?:[+-]?\.?\d|\\frac)", re.IGNORECASE)
_NEXT_SENTENCE = re.compile(r"\.(?!\d)|[。!?！？\n]")


def read(text: str) -> Value | None:
    """The one number that `text` puts forward first, or None: no number, several, a time, an ordinal, arithmetic left undone."""
    text = unwrap(text[:LONGEST] if len(text) <= LONGEST else text[: MOST_DIGITS + 100])
    text = _right_of_equals(text)
    text = text[_LEAD.match(text).end() :] if _LEAD.match(text) else text  # type: ignore[union-attr]
    if "±" in text[:2]:
        return None
    sign, rest = _sign_and_currency(text)
    m = _TEN_POWER.match(rest) or _NUMBER.match(rest)
    if m is None:
        return _words(text)
    value = _scaled(Fraction(1), m["ten"]) if m.re is _TEN_POWER else _number(m)
    return None if value is None else _with_tail(sign * value, rest[m.end() :], m)


def _right_of_equals(text: str) -> str:
    """Right of the last `=`, unless nothing is there."""
    parts = [p for p in re.split(r"(?<![<>!])=|≈", text) if p.strip()]
    return parts[-1].strip() if parts else ""


def _sign_and_currency(text: str) -> tuple[int, str]:
    m = re.match(rf"(?P<a>[+-])?\s*{_CURRENCY}\s*(?P<b>[+-])?\s*(?=[\d.\\])", text, re.IGNORECASE)
    if m is None:
        return 1, text
    return (-1 if "-" in (m["a"], m["b"]) else 1), text[m.end() :]


def _with_tail(value: Fraction, tail: str, m: re.Match[str]) -> Value | None:
    """Judge what follows the number: a percent sign, a scale word, a unit; or something that makes it no single number."""
    if scaled := _SCALED.match(tail):
        value, tail = value * _SCALE[scaled[1].lower()], tail[scaled.end() :]
    if percent := _PERCENT.match(tail):
        tail = tail[percent.end() :]
    if _ORDINAL.match(tail) or _CLOCK.match(tail) or _MORE.match(tail) or _VARIABLE.match(tail):
        return None
    sentence = tail[: end.start()] if (end := _NEXT_SENTENCE.search(tail)) else tail
    if _JOINED.match(sentence[:200]):
        return None
    return Value(value, percent is not None)


def _words(text: str) -> Value | None:
    """Numerals in words, at the start only."""
    if m := _CN.match(text):
        number = chinese(m[0])
        return None if number is None else _with_tail(Fraction(number), text[m.end() :], m)
    if m := _EN_RUN.match(text):
        number = english(m[0])
        return None if number is None else _with_tail(Fraction(number), " " + text[m.end() :], m)
    return None


_TOKEN = re.compile(
    rf"""(?P<no>\d+(?::\d+)+|\d{{2,4}}-\d{{1,2}}-\d{{1,2}}(?!\d)|\d+(?:st|nd|rd|th)\b)
    |(?P<text>(?:(?<![\w.)\]}}]\s)(?<![\w.)\]}}])[+-]\s*)?(?:{_CURRENCY}\s*)?{_NUMBER.pattern.replace("(?P<sign>[+-]" + chr(92) + "s*)?", "", 1)})""",
    re.VERBOSE | re.IGNORECASE,
)
_OPEN_ARITHMETIC = re.compile(r"[\d)}]\s*[*×÷/^+±-]\s*(?:[$€£¥(]\s*)?$|(?:±|\\sqrt\s*[({]?|\bnot\s+|不是)\s*$")


def last_number(text: str) -> Value | None:
    """No slot: the last number that stands for itself; a time, a date, an ordinal is passed over, arithmetic left undone is no answer."""
    text = unwrap(text)
    best: tuple[str, str] | None = None
    for m in _TOKEN.finditer(text):
        if m["text"] and not (best and re.search(r"\b(?:not|不是)\s*$", text[max(0, m.start() - 8) : m.start()])):
            best = (text[max(0, m.start() - 40) : m.start()], text[m.start() : m.start() + MOST_DIGITS + 100])
    if best is None or _OPEN_ARITHMETIC.search(best[0]):
        return None
    number = re.split(r"=|≈", best[1])[0]
    return read(number)
