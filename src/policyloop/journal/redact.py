"""Personal data out of text, before it touches a disk: e-mail, phone, identity and payment numbers, addresses of machines, secrets.

In: the pieces of one exchange (messages, answer). Out: the same pieces with each find replaced by its kind in brackets, and whether
anything was found. Numbers with a check digit are checked (identity cards, cards, IBAN), phone numbers are those that exist
(libphonenumber), so that arithmetic stays arithmetic. Full-width digits and zero-width characters hide nothing. A find that spans two
pieces (a prompt that ends inside a number which the answer completes) is cut out of both. Names and street addresses are not looked
for: a recogniser of the user's own (`module:function`, text -> spans) can be added.

Example:
    >>> Redactor().pieces(["I am ann@example.org, call 13812345678", "fine"])
    (['I am [email], call [phone]', 'fine'], True)
"""

from __future__ import annotations

import hashlib
import importlib
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import phonenumbers
from stdnum import iban, luhn
from stdnum.cn import ric
from stdnum.us import ssn

from policyloop.errors import BadInput

Span = tuple[int, int, str]  # from, to (of the text), kind
Recogniser = Callable[[str], Iterable[Span]]

_EDGE, _END = (
    r"(?<![A-Za-z0-9])",
    r"(?![A-Za-z0-9])",
)  # not \b: Chinese characters are word characters, and stand right beside numbers
EMAIL = re.compile(r"[a-z0-9À-ɏЀ-ӿ][\w.%+'-]{0,63}@(?:[a-z0-9À-ɏЀ-ӿ-]{1,63}\.){1,8}[a-zÀ-ɏЀ-ӿ-]{2,24}", re.I | re.A)
DIGITS = re.compile(r"(?<![\d.,])\d(?:[ -]?\d){12,18}(?![\d]|[.,]\d)")  # 13 to 19: payment cards
CARD_START = re.compile(r"4|5[1-5]|2[2-7]|3[4-7]|6")
CN_ID = re.compile(rf"{_EDGE}\d(?: ?\d){{16}} ?[\dXx]{_END}")
US_SSN = re.compile(r"(?<!\d)\d{3}[- ]\d{2}[- ]\d{4}(?!\d)")
IBAN = re.compile(rf"{_EDGE}[A-Z]{{2}}\d{{2}}(?: ?[A-Z0-9]){{11,30}}", re.I)
IPV4 = re.compile(r"(?<![\d.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\d]|\.\d)")
IPV6 = re.compile(r"(?<![\w:])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.I)
PHONE_HINT = re.compile(r"\d(?:[\s().–-]{0,3}\d){6}")
NUMBER_HINT = re.compile(r"\d(?:[ -]?[A-Za-z\d]){8}")
SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    rf"|{_EDGE}(?:sk-[\w-]{{16,}}|sk_(?:live|test)_\w{{16,}}|gh[pousr]_\w{{30,}}|github_pat_\w{{30,}}|glpat-[\w-]{{16,}}"
    r"|hf_[A-Za-z0-9]{20,}|xox[abprs]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{35}|ya29\.[\w-]{20,}|npm_\w{30,}"
    r"|LTAI\w{12,24}|AKID\w{13,40}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
    r"|(?<=bearer )[\w.~+/-]{16,}=*"
    r"|(?<=://)[^\s:@/]+:[^\s@/]+(?=@)"
    r"|(?:api[_-]?key|secret|passw(?:or)?d|token|密码|口令)[\"']?\s*[:=：]\s*[\"']?[^\s\"',;]{6,}",
    re.DOTALL | re.I,
)


def secrets(text: str) -> Iterator[Span]:
    yield from ((m.start(), m.end(), "secret") for m in SECRET.finditer(text))


def emails(text: str) -> Iterator[Span]:
    if "@" in text:
        yield from ((m.start(), m.end(), "email") for m in EMAIL.finditer(text))


def identity_numbers(text: str) -> Iterator[Span]:
    """Resident identity cards (birth date and check digit hold) and US social security numbers (issued ranges)."""
    if not NUMBER_HINT.search(text):
        return
    yield from ((m.start(), m.end(), "id") for m in CN_ID.finditer(text) if ric.is_valid(m[0].replace(" ", "")))
    yield from ((m.start(), m.end(), "id") for m in US_SSN.finditer(text) if ssn.is_valid(m[0].replace(" ", "-")))


def payment_numbers(text: str) -> Iterator[Span]:
    """Cards (Luhn, first digits of an issuer) and IBANs (check digits; trailing words that only look like more of it are left)."""
    if not NUMBER_HINT.search(text):
        return
    for m in DIGITS.finditer(text):
        if CARD_START.match(m[0]) and luhn.is_valid(re.sub(r"\D", "", m[0])):
            yield m.start(), m.end(), "card"
    for m in IBAN.finditer(text):
        for end in range(m.end(), m.start() + 14, -1):
            if not text[end - 1].isspace() and iban.is_valid(text[m.start() : end]):
                yield m.start(), end, "iban"
                break


def addresses(text: str) -> Iterator[Span]:
    if text.count(".") >= 3:
        yield from ((m.start(), m.end(), "ip") for m in IPV4.finditer(text))
    for m in IPV6.finditer(text) if text.count(":") >= 2 else ():
        try:
            ipaddress.IPv6Address(m[0])
        except ValueError:
            continue
        if len(m[0].replace(":", "")) >= 3:  # `::` and `a::` are code
            yield m.start(), m.end(), "ip"


def phones(regions: Sequence[str]) -> Recogniser:
    """Numbers that exist: written with `+` anywhere, else as people of these regions write them."""

    def find(text: str) -> Iterator[Span]:
        if PHONE_HINT.search(text):
            for region in regions:
                yield from ((m.start, m.end, "phone") for m in phonenumbers.PhoneNumberMatcher(text, region))

    return find


class Redactor:
    """`regions`: whose phone numbers are known without `+`. `extra`: `module:function` recognisers of the user's own."""

    def __init__(self, regions: Sequence[str] = ("CN", "US"), extra: Sequence[str] = ()) -> None:
        unknown = [r for r in regions if r not in phonenumbers.SUPPORTED_REGIONS]
        if unknown:
            raise BadInput(
                f"journal.phone_regions has {', '.join(unknown)}", "two-letter regions such as CN", "journal.phone_regions"
            )
        own = [_imported(name) for name in extra]
        self.recognisers: list[Recogniser] = [
            secrets,
            emails,
            identity_numbers,
            payment_numbers,
            addresses,
            phones(regions),
            *own,
        ]

    def spans(self, text: str) -> list[Span]:
        """Finds in order, overlapping ones merged under the first one's kind."""
        folded, place = _fold(text)
        found = sorted((place[a], place[b - 1] + 1, kind) for see in self.recognisers for a, b, kind in see(folded) if b > a)
        merged: list[Span] = []
        for a, b, kind in found:
            if merged and a < merged[-1][1]:
                first = merged.pop()
                merged.append((first[0], max(first[1], b), first[2]))
            else:
                merged.append((a, b, kind))
        return merged

    def pieces(self, texts: Sequence[str]) -> tuple[list[str], bool]:
        """Each piece on its own, then all of them as one text, since the last message may be continued by the answer."""
        cuts: list[list[Span]] = [self.spans(t) for t in texts]
        if not any(cuts):
            starts = [sum(len(t) for t in texts[:i]) for i in range(len(texts))]
            for a, b, kind in self.spans("".join(texts)) if len(texts) > 1 else ():
                for i, start in enumerate(starts):
                    if a < start + len(texts[i]) and b > start:
                        cuts[i].append((max(0, a - start), min(len(texts[i]), b - start), kind))
        return [_cut(t, spans) for t, spans in zip(texts, cuts, strict=True)], any(cuts)

    def text(self, text: str) -> str:
        return self.pieces([text])[0][0]

    def anything(self, value: Any) -> Any:
        """Every text inside a JSON value, its keys included; where there is nothing to cut out the result equals what came in."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(k)): self.anything(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.anything(v) for v in value)
        return value

    def name(self, value: str) -> str:
        """A key, user, session or request id: as it is, or as a pseudonym where it is itself personal data."""
        return pseudonym(value) if value and self.spans(value) else value


def pseudonym(value: str) -> str:
    """The same person has the same pseudonym everywhere."""
    return "p-" + hashlib.blake2b(value.strip().casefold().encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def _fold(text: str) -> tuple[str, Sequence[int]]:
    """The text as recognisers read it (full-width as ASCII, invisible characters gone) and where each character stood."""
    if text.isascii():
        return text, range(len(text))
    out, place = [], []
    for i, char in enumerate(text):
        if unicodedata.category(char) in ("Cf", "Mn") or not (plain := unicodedata.normalize("NFKC", char)):
            continue
        out.append(plain if len(plain) == 1 else char)
        place.append(i)
    return "".join(out), place


def _cut(text: str, spans: Sequence[Span]) -> str:
    out, at = [], 0
    for a, b, kind in spans:
        out += [text[at:a], f"[{kind}]"]
        at = b
    return "".join([*out, text[at:]])


def _imported(name: str) -> Recogniser:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadInput(
            f"journal.recognisers: {name} cannot be imported ({problem})", "module:function", "journal.recognisers"
        ) from None
