"""docs/requirements.md: every requirement once, every named path there, every open one under a known capability."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
CAPABILITIES = {"Fast", "Algorithms", "Store", "Serve", "Loop", "Scale", "Operate", "Prove"}


def rows() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    return re.findall(r"^\| (S[013]-\d+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)


def test_every_requirement_once() -> None:
    expected = [f"S0-{i}" for i in range(1, 83)] + [f"S1-{i}" for i in range(1, 92)] + [f"S3-{i}" for i in range(1, 84)]
    assert [number for number, _ in rows()] == expected and len(expected) == 256


def test_each_names_a_place_and_a_test_or_what_will_bring_it() -> None:
    for number, where in rows():
        if where.startswith("open: "):
            assert where.removeprefix("open: ") in CAPABILITIES, number
            continue
        paths = re.findall(r"`([^`]+)`", where)
        assert paths[0].startswith(("src/policyloop/", "deploy/")) and any(p.startswith("tests/") for p in paths), number
        assert all((ROOT / p).exists() for p in paths), f"{number}: {paths}"
