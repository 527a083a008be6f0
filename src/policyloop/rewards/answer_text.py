"""One spelling for answer text: Unicode variants, LaTeX, HTML and Markdown taken off, the value left.

In: any text. Out: plain text in which only `\\\\frac`, `\\\\sqrt` and the like are left of LaTeX. Linear time; nothing is evaluated.

Example:
    >>> unwrap("**\\\\$1{,}234**"), unwrap("\\\\text{１２ m²}")
    ('1,234', '12 m^2')
"""

from __future__ import annotations

import html
import re
import unicodedata

_SUPERSCRIPT = {ord(c): d for c, d in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+", strict=True)}
_SUPERS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff\u202a-\u202e]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_DASHES = dict.fromkeys(map(ord, "−‐‑‒–﹣－"), "-")
_SPACES = dict.fromkeys([0xA0, 0x2007, 0x2009, 0x202F, 0x3000], " ")
_ENTITY = re.compile(r"&(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,5}|[a-zA-Z]{2,8}\d{0,2});")


def plain(text: str) -> str:
    """Full-width digits and punctuation, superscripts, vulgar fractions, minus signs and blanks in one spelling each."""
    if "&" in text:
        text = _ENTITY.sub(lambda m: html.unescape(m[0]), text)
    text = text.replace("（", " (").replace("）", ") ")  # full-width: an aside, not a product
    text = _INVISIBLE.sub("", text.translate(_SPACES).translate(_DASHES))
    text = _SUPERS.sub(lambda m: "^" + m[0].translate(_SUPERSCRIPT), text)
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[0]).replace("\u2044", "/") + " ", text)
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/").translate(_DASHES)
    return _CONTROL.sub(" ", text)


_WRAPPED = re.compile(
    r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|operatorname|mbox|boxed|fbox|underline|bold)\s*\{([^{}]*)\}"
)
_COMMANDS = [
    (re.compile(r"\\\\(?=[a-zA-Z])"), r"\\"),  # escaped twice
    (re.compile(r"\\\\"), "\n"),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{,\}|,\\!|\\,(?=\d{3})"), ","),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![a-zA-Z])|\\[,;:> ]"), " "),
    (re.compile(r"(?<![A-Za-z])(?:US|AU?|CA?|R|HK|NZ)\\?\$(?=\s?-?[\d.])"), " "),
    (re.compile(r"(?<![\w)])-\s?\\?\$(?=\s?[\d.])"), "-"),
    (re.compile(r"([$€£¥₹]\s?\d[\d.,]{0,20})\s?M(?![A-Za-z$])"), r"\1 million"),
    (re.compile(r"([$€£¥₹]\s?\d[\d.,]{0,20})\s?B(?![A-Za-z$])"), r"\1 billion"),
    (re.compile(r"\\[()\[\]]|\\?\$"), " "),
    (re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree|\\circ|°"), " degrees "),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-zA-Z])"), "×"),
    (re.compile(r"\\div(?![a-zA-Z])"), "÷"),
    (re.compile(r"\\(?:pm|mp)(?![a-zA-Z])"), "±"),
    (re.compile(r"\\neq?(?![a-zA-Z])"), "≠"),
    (re.compile(r"\\(?:approx|simeq)(?![a-zA-Z])|≈"), "="),
    (re.compile(r"\\(?:implies|Rightarrow|rightarrow|to)(?![a-zA-Z])|(?<!=)=++>|(?<!-)-++>|[→⇒]"), " = "),
    (re.compile(r"\\(?:begin|end)\{[a-z]{1,20}\*?\}|&\s?(?==)|(?<==)\s?&"), " "),
    (re.compile(r"\\%"), "%"),
    (re.compile("[⋅∙]"), "·"),
    (re.compile(r"\\#"), "#"),
    (re.compile(r"(?<!~)~(?=\s?[A-Za-z])"), " "),
    (re.compile(r"<<[^<>\n]{0,200}>>"), ""),  # GSM8K's calculator notes
    (re.compile(r"<(del|s|strike)>[^<>\n]{0,200}</\1>", re.IGNORECASE), " "),
    (re.compile(r"</?[a-zA-Z][^<>]{0,80}>"), " "),
    (re.compile(r"~~[^~\n]{1,200}~~"), " "),  # struck out: withdrawn
    (re.compile(r"\{([^{}\\]{1,40})\\over(?![a-z])([^{}]{1,40})\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"(?<=\d)\*\*(?=\d)"), "^"),
    (re.compile(r"\*\*+|__+|`+"), " "),
    (re.compile(r"(?<![\w*)])\*(?=\S)([^*\n]{1,80})(?<=\S)\*(?![\w*(])"), r" \1 "),
    (re.compile(r"(?<![\w\\}])_(?=\S)([^_\n]{1,80})(?<=\S)_(?!\w)"), r" \1 "),
    (re.compile(r"[ \t]{2,}"), " "),
]


_SIMPLE = re.compile(r"(?:[A-Za-z0-9.,:;/()%+'\"!?\n-]| (?! ))*+")


def unwrap(text: str) -> str:
    """What is left when LaTeX, HTML and Markdown around an answer are taken off."""
    if _SIMPLE.fullmatch(text):
        return text.strip()
    text = plain(text)[: 2 * len(text) + 100]  # some single characters stand for whole sentences
    for _ in range(6):
        inner = _WRAPPED.sub(r" \1 ", text)
        if inner == text:
            break
        text = inner
    for pattern, replacement in _COMMANDS:
        text = pattern.sub(replacement, text)
    return text.strip()


_SEPARATORS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_BLANKS = re.compile(r"[ \t]{2,}")
_LINES = re.compile(r"\n[ \t\n]+(?=\n)")


def tidy(text: str) -> str:
    """One sign for the end of a line; runs of blanks and of empty lines cut short, so that no pattern ever meets a long one.

    LaTeX whose escapes a JSON or Python reader has eaten is mended: "\\f" of \\frac, "\\b" of \\boxed.
    """
    text = text.replace("\x0crac{", "\\frac{").replace("\x08oxed{", "\\boxed{")
    return _LINES.sub("\n", _BLANKS.sub(" ", _SEPARATORS.sub("\n", text)))
