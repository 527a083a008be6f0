"""Expressions in exact normal form: polynomials over pi, e, i, letters and square roots, with fractions as coefficients.

In: an expression without its wrapping, `\\\\frac{\\\\sqrt{2}}{2}` or `(x+1)^2`. Out: `Polynomial`, equal exactly where the expressions are, or None
where this small grammar or its bounds end (a function, a quotient of sums, a high power): that is for the symbolic judge.

Example:
    >>> normal_form("1/\\\\sqrt{2}") == normal_form("\\\\frac{\\\\sqrt{2}}{2}"), normal_form("\\\\sin x") is None
    (True, True)
"""

from __future__ import annotations

import re
from fractions import Fraction

# A monomial is its letters with their powers and the square-free number under its root: 3 x^2 sqrt(5) -> {((("x", 2),), 5): 3}.
Letters = tuple[tuple[str, int], ...]
Monomial = tuple[Letters, int]
Polynomial = dict[Monomial, Fraction]
_ONE: Monomial = ((), 1)

MOST_CHARACTERS, MOST_TERMS, MOST_POWER, MOST_BITS, MOST_DEPTH = 300, 60, 30, 256, 30
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|(\\[a-zA-Z]+|[a-zA-Zπ√×÷·∞]|\*\*|[-+*/^(){}\[\],]))")
_WORD = re.compile(r"[a-zA-Z]{4}")  # no product of letters
_SAME = {"**": "^", "×": "*", "·": "*", "÷": "/", "√": "\\sqrt", "π": "\\pi", "[": "(", "]": ")", "\\left": "", "\\right": ""}
_GREEK = frozenset(
    f"\\{name}"
    for name in ["pi", "alpha", "beta", "gamma", "delta", "theta", "lambda", "mu", "sigma", "phi", "omega", "rho", "tau"]
)


class _TooHard(Exception):
    """Outside the grammar or its bounds."""


def normal_form(text: str) -> Polynomial | None:
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        reader = _Reader(_tokens(text))
        form = reader.sum(0)
        return form if reader.at == len(reader.tokens) else None
    except (_TooHard, ZeroDivisionError):
        return None


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = re.sub(r"(?<![\\A-Za-z])(pi|sqrt)(?![A-Za-z])", r"\\\1 ", text).rstrip()
    while at < len(text):
        m = _TOKEN.match(text, at)
        if m is None or _WORD.match(text, m.start(2)):
            raise _TooHard
        token = _SAME.get(m[1] or m[2], m[1] or m[2])
        tokens += [token] if token else []
        at = m.end()
    return tokens


class _Reader:
    """Recursive descent: sum > product > power > atom. `{` and `(` group alike."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.at = tokens, 0

    def next(self, *wanted: str) -> str | None:
        """Takes the token at hand if it is one of these."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or token not in wanted:
            return None
        self.at += 1
        return token

    def sum(self, depth: int) -> Polynomial:
        if depth > MOST_DEPTH:
            raise _TooHard
        sign = self.next("+", "-")
        total = _times(_number(-1 if sign == "-" else 1), self.product(depth))
        while sign := self.next("+", "-"):
            total = _plus(total, _times(_number(-1 if sign == "-" else 1), self.product(depth)))
        return total

    def product(self, depth: int) -> Polynomial:
        total = self.power(depth)
        while self.at < len(self.tokens) and self.tokens[self.at] not in ("+", "-", ")", "}", ","):
            sign = self.next("*", "/", "\\cdot", "\\times", "\\div")
            if sign is None and self.number_behind_number():
                raise _TooHard
            factor = self.power(depth)
            total = _over(total, factor) if sign in ("/", "\\div") else _times(total, factor)
        return total

    def number_behind_number(self) -> bool:
        """2 3, or the mixed number 2\\frac{1}{3}: no product."""
        before, here = self.tokens[self.at - 1], self.tokens[self.at]
        return before[-1].isdigit() and (here[0].isdigit() or here == "\\frac")

    def power(self, depth: int) -> Polynomial:
        base = self.atom(depth)
        if not self.next("^"):
            return base
        sign = self.next("-")
        form = self.atom(depth)
        exponent = form.get(_ONE, Fraction(0))
        if len(form) > 1 or exponent.denominator != 1 or not 0 < abs(exponent) <= MOST_POWER:
            raise _TooHard
        total = _number(1)
        for _ in range(abs(int(exponent))):
            total = _times(total, base)
        return total if (exponent > 0) is (sign is None) else _over(_number(1), total)

    def atom(self, depth: int) -> Polynomial:
        if self.at == len(self.tokens):
            raise _TooHard
        token = self.tokens[self.at]
        self.at += 1
        if token[0].isdigit() or token[0] == ".":
            return _number(Fraction(token))
        if token in ("(", "{"):
            inside = self.sum(depth + 1)
            if not self.next(")" if token == "(" else "}"):
                raise _TooHard
            return inside
        if token == "\\frac":
            return _over(self.argument(depth), self.argument(depth))
        if token == "\\sqrt":
            return _root(self.argument(depth))
        if token in _GREEK or (len(token) == 1 and token.isalpha()):
            return {(((token, 1),), 1): Fraction(1)}
        raise _TooHard

    def argument(self, depth: int) -> Polynomial:
        """\\frac12 takes single digits."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if len(token) > 1 and token.isdigit():
            self.tokens[self.at : self.at + 1] = list(token)
        return self.atom(depth)


def _number(value: Fraction | int) -> Polynomial:
    return {_ONE: Fraction(value)} if value else {}


def _bounded(form: Polynomial) -> Polynomial:
    form = {m: c for m, c in form.items() if c}
    if len(form) > MOST_TERMS or any(
        max(c.numerator.bit_length(), c.denominator.bit_length()) > MOST_BITS for c in form.values()
    ):
        raise _TooHard
    return form


def _plus(a: Polynomial, b: Polynomial) -> Polynomial:
    return _bounded({m: a.get(m, Fraction(0)) + b.get(m, Fraction(0)) for m in a | b})


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for (letters_a, root_a), x in a.items():
        for (letters_b, root_b), y in b.items():
            outside, root = _square_free(root_a * root_b)
            letters, sign = _joined(letters_a, letters_b)
            total[letters, root] = total.get((letters, root), Fraction(0)) + x * y * outside * sign
    return _bounded(total)


def _joined(a: Letters, b: Letters) -> tuple[Letters, int]:
    """The letters of a product and its sign: i² = -1."""
    powers = dict(a)
    for letter, power in b:
        powers[letter] = powers.get(letter, 0) + power
    if any(abs(p) > MOST_POWER for p in powers.values()):
        raise _TooHard
    turns = powers.pop("i", 0) % 4
    powers["i"] = turns % 2
    return tuple(sorted((letter, p) for letter, p in powers.items() if p)), -1 if turns > 1 else 1


def _over(a: Polynomial, b: Polynomial) -> Polynomial:
    """By one term only."""
    if len(b) != 1:
        if not b:
            raise ZeroDivisionError
        raise _TooHard
    (letters, root), c = next(iter(b.items()))
    return _times(a, {(tuple((letter, -p) for letter, p in letters), root): 1 / (c * root)})


def _root(form: Polynomial) -> Polynomial:
    """Of a positive number."""
    value = form.get(_ONE, Fraction(0))
    if list(form) != [_ONE] or value < 0:
        raise _TooHard
    outside, root = _square_free(value.numerator * value.denominator)
    return {((), root): Fraction(outside, value.denominator)}


def _square_free(n: int) -> tuple[int, int]:
    """n = outside² · root."""
    if n > 10**8:
        raise _TooHard
    outside, d = 1, 2
    while d * d <= n:
        while n % (d * d) == 0:
            n, outside = n // (d * d), outside * d
        d += 1
    return outside, n
