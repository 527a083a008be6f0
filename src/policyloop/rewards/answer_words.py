"""Numerals in words, Chinese and English, to exact values. A run of words that is no numeral has no value.

Example:
    >>> chinese("一万两千"), chinese("三分之二"), english("one hundred and five"), english("five six")
    (Fraction(12000, 1), Fraction(2, 3), Fraction(105, 1), None)
"""

from __future__ import annotations

import re
from fractions import Fraction

_DIGIT = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "俩": 2}
_DIGIT |= {c: i for i, c in enumerate("零壹贰叁肆伍陆柒捌玖")}  # as on cheques
_UNIT = {"十": 10, "百": 100, "千": 1000, "拾": 10, "佰": 100, "仟": 1000}
_BIG = {"万": 10**4, "亿": 10**8}
_SIGNS = f"[{''.join([*_DIGIT, *_UNIT, *_BIG])}]"
_WORD_GOES_ON = "角形|边形|棱|面体|半|定|般|样|起|些|直|旦|致|者|次[方函]"  # 三角形, 一定, 一样: no numerals
CHINESE = re.compile(f"(?:百分之|负百分之|负)?{_SIGNS}++(?:(?:点|分之){_SIGNS}++)?(?!{_WORD_GOES_ON})")


def chinese(text: str) -> Fraction | None:
    """二十五 -> 25, 三点五 -> 7/2, 三分之二 -> 2/3, 负五 -> -5; of 百分之七十 the 70."""
    if text.startswith("负"):
        value = chinese(text[1:])
        return None if value is None else -value
    if text.startswith("百分之"):
        whole_part = _whole(text[3:])
        return None if whole_part is None else Fraction(whole_part)
    bottom, sign, top = text.partition("分之")
    if sign:
        a, b = _whole(top), _whole(bottom)
        return None if a is None or not b else Fraction(a, b)
    whole, _, rest = text.partition("点")
    value = _whole(whole)
    if value is None or not all(c in _DIGIT for c in rest):
        return None
    return value + Fraction(int("".join(str(_DIGIT[c]) for c in rest) or "0"), 10 ** len(rest))


def _whole(text: str) -> int | None:
    """A run of digits (二〇二四) is read digit by digit."""
    if not text or len(text) > 30 or not all(c in _DIGIT or c in _UNIT or c in _BIG for c in text):
        return None
    if all(c in _DIGIT for c in text):
        return int("".join(str(_DIGIT[c]) for c in text))
    total, section, digit = 0, 0, 0
    for c in text:
        if c in _DIGIT:
            digit = _DIGIT[c]
        elif c in _UNIT:
            section += (digit or 1) * _UNIT[c]
            digit = 0
        else:
            total = (total + section + digit) * _BIG[c] if c == "亿" else total + (section + digit) * _BIG[c]
            section = digit = 0
    return total + section + digit


_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_SMALL = {w: i for i, w in enumerate(_ONES.split(" "))}
_TEN = {w: 10 * (i + 2) for i, w in enumerate(_TENS.split(" "))}
_POWER = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_WORD = "|".join([*_SMALL, *_TEN, *_POWER, "hundred"])
_AND = r"(?<=hundred)\s+and\s+|(?<=thousand)\s+and\s+|(?<=million)\s+and\s+"
ENGLISH = re.compile(rf"(?:{_WORD})\b(?:(?:{_AND}|-|\s+)(?:{_WORD})\b){{0,30}}(?!-?[a-z])(?!(?<=one)\s+of\b)", re.IGNORECASE)


def english(text: str) -> Fraction | None:
    """twenty-five -> 25, two thousand three hundred and four -> 2304; what is no numeral (five six) -> None."""
    words = re.sub(r"[\s-]+|\band\b", " ", text.lower()).split()
    total, section, last, power = 0, 0, 1000, 10**15  # last, power: places must fall from word to word
    for at, word in enumerate(words):
        if word in _POWER:
            if (not section and at > 0) or _POWER[word] >= power:
                return None
            total, section, last, power = total + (section or 1) * _POWER[word], 0, 1000, _POWER[word]
        elif word == "hundred":
            if last <= 100 and not 0 < section < 100:
                return None
            section, last = (section or 1) * 100, 100
        else:
            value = _SMALL.get(word, _TEN.get(word, 0))
            place = 10 if word in _TEN else 1
            if last <= place or (last == 10 and not 0 < value < 10):
                return None
            section, last = section + value, place
    return Fraction(total + section)
