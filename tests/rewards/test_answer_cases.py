"""The grader on real inputs that broke other graders, on every GSM8K gold, and on hostile text."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from policyloop.rewards.math import grade

CASES = [json.loads(line) for line in (Path(__file__).parent / "answer_cases.jsonl").read_text(encoding="utf-8").splitlines()]
SHARED = Path(os.environ.get("POLICYLOOP_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "gsm8k"


@pytest.mark.parametrize("row", CASES, ids=lambda r: r["id"])
def test_answer_case(row: dict[str, Any]) -> None:
    assert grade(row["completion"], row["gold"]) is row["expected_correct"], row["note"]


def test_the_verdict_is_the_same_off_the_main_thread() -> None:
    """B08: no signals, so any thread will do."""
    found: list[bool | None] = []
    rows = [r for r in CASES if "\\" not in r["gold"]]
    worker = threading.Thread(target=lambda: found.extend(grade(r["completion"], r["gold"]) for r in rows))
    worker.start()
    worker.join(60)
    assert found == [r["expected_correct"] for r in rows]


@pytest.mark.parametrize("gold", ["", "   ", "####", "see above", "no answer"])
def test_a_gold_that_cannot_be_read_is_not_judged(gold: str) -> None:
    """R6: neither right nor wrong."""
    assert grade("#### 5", gold) is None


HOSTILE = [
    "\\boxed{" * 4000,
    "<answer>" * 4000,
    "#### " * 20000,
    "the answer is " * 10000,
    "Question: 5\n" * 10000,
    "(" * 20000 + "5",
    "1," * 50000,
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{2^{9999999999}}",
    "#### 1e999999999",
    "答案是" * 20000,
    "9" * 5000,
    "\x00\ud800",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda t: repr(t[:12]))
def test_hostile_text_is_wrong_in_bounded_time(text: str) -> None:
    """R7, B07. The bound is loose because the machine is noisy; what it forbids is quadratic time."""
    start = time.monotonic()
    assert grade(text, "7") in (False, None)
    assert time.monotonic() - start < 8


def test_every_gold_of_gsm8k_against_itself_and_its_neighbour() -> None:
    if not SHARED.exists():
        pytest.skip(f"the GSM8K data set is not at {SHARED}")
    texts = [(SHARED / f"{f}.jsonl").read_text(encoding="utf-8") for f in ("train", "test")]
    golds = [json.loads(line)["answer"].rpartition("####")[2].strip() for text in texts for line in text.split("\n") if line]
    assert len(golds) == 8792
    assert [g for g in golds if grade(f"#### {g}", g) is not True] == []
    assert [g for g in golds if grade(f"#### {int(g.replace(',', '')) + 1}", g) is not False] == []
