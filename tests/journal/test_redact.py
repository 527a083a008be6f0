"""Redaction: what is personal goes, what only looks like it stays. Numbers are the issuers' own test numbers or made with their check digit."""

from __future__ import annotations

import pytest

from policyloop.errors import BadInput
from policyloop.journal.redact import Redactor, pseudonym

REDACTOR = Redactor()

PERSONAL = [
    ("write to ann.lee+shop@mail.example.org today", "write to [email] today"),
    ("我的邮箱是zhang.san@qq.com，谢谢", "我的邮箱是[email]，谢谢"),
    ("call 13812345678 or 138-1234-5678", "call [phone] or [phone]"),
    ("电话１３８１２３４５６７８号", "电话[phone]号"),
    ("13\u200b812345678", "[phone]"),
    ("(415) 555-2671 and +49 30 901820", "[phone] and [phone]"),
    ("身份证11010519491231002X。", "身份证[id]。"),
    ("SSN 123-45-6789", "SSN [id]"),
    ("card 4111 1111 1111 1111, or 5500-0000-0000-0004", "card [card], or [card]"),
    ("pay DE89 3704 0044 0532 0130 00 and go", "pay [iban] and go"),
    ("gb82west12345698765432", "[iban]"),
    ("from 192.168.0.17 to 2001:db8::8a2e:370:7334", "from [ip] to [ip]"),
    ("key sk-abcdefghijklmnop1234", "key [secret]"),
    ("AKIAIOSFODNN7EXAMPLE", "[secret]"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[secret]"),
    ("Authorization: Bearer abcdefghijklmnop.qrst", "Authorization: Bearer [secret]"),
    ("postgres://bob:hunter2@db/x", "postgres://[secret]@db/x"),
    ("password = correct-horse", "[secret]"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc", "[secret]"),
]
HARMLESS = [
    "9-3+2-6=",
    "12345678 * 87654321 = 1082152022374638",
    "The pi day: 3.14159265358979, and 2,147,483,647 or 1.2e10.",
    "ID 110105194912310021 has a wrong check digit",
    "4111 1111 1111 1112 is no card",
    "DE89 3704 0044 0532 0130 01",
    "Between 1999-2000, at 12:30:45, std::cout << a::b;",
    "version 1.2.3, chapter 4.5.6.7.8",
    "小明有5个苹果，妈妈又给他12个，一共有多少个？",
    "token ids 1234 5678 9012",
    "ask me @ noon",
]


@pytest.mark.parametrize(("text", "shown"), PERSONAL, ids=lambda x: x[:12])
def test_personal_data_goes(text: str, shown: str) -> None:
    assert REDACTOR.pieces([text]) == ([shown], True)


@pytest.mark.parametrize("text", HARMLESS, ids=lambda x: x[:12])
def test_what_only_looks_like_it_stays(text: str) -> None:
    assert REDACTOR.pieces([text]) == ([text], False)


def test_a_number_split_between_prompt_and_answer_goes_from_both() -> None:
    assert REDACTOR.pieces(["my number is 138", "12345678."]) == (["my number is [phone]", "[phone]."], True)


def test_names_of_people_become_the_same_pseudonym_everywhere() -> None:
    assert REDACTOR.name("team-a") == "team-a"
    assert REDACTOR.name("Ann@Example.org") == REDACTOR.name("ann@example.org ") == pseudonym("ann@example.org")
    assert "ann" not in REDACTOR.name("ann@example.org")


def test_every_text_inside_a_json_value() -> None:
    assert REDACTOR.anything({"stop": ["a@b.org"], "n": 2}) == {"stop": ["[email]"], "n": 2}


def test_own_recognisers_and_regions() -> None:
    german = Redactor(regions=("DE",))
    assert german.text("030 901820") == "[phone]" and german.text("13812345678") != "[phone]"
    with pytest.raises(BadInput, match="XX"):
        Redactor(regions=("XX",))
    with pytest.raises(BadInput, match="cannot be imported"):
        Redactor(extra=("nowhere:find",))


def test_an_own_recogniser_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.setattr(
        re, "policyloop_test", lambda text: [(m.start(), m.end(), "badge") for m in re.finditer(r"B-\d+", text)], raising=False
    )
    assert Redactor(extra=("re:policyloop_test",)).text("badge B-17") == "badge [badge]"
