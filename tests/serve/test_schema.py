"""Junk over the whole OpenAPI document: every answer is an answer or a refusal, never a failure (schemathesis)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from served import Served

QUICK = {"max_tokens": 2, "n": 1}
SKIPPED = {"/metrics"}


def _junk(server: Served, cases: int) -> int:
    document = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [o.ok() for o in document.get_all_operations()]
    bodies = sum(o.method == "post" for o in operations)
    return sum(_junk_for(server, o, cases // bodies if o.method == "post" else 3) for o in operations if o.path not in SKIPPED)


def _junk_for(server: Served, operation: Any, cases: int) -> int:
    count = 0

    cases_of = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

    @given(case=st.one_of(cases_of))
    @settings(max_examples=cases, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    def fits(case: Any) -> None:
        nonlocal count
        if isinstance(case.body, dict):  # what would be answered is answered shortly
            case.body.update({k: v for k, v in QUICK.items() if isinstance(case.body.get(k, v), int)})
        got = case.call(base_url=server.url, timeout=60)
        assert got.status_code < 500 or (got.status_code == 503 and "journal" in got.text), (case.as_curl_command(), got.text)
        count += 1

    fits()
    return count


@pytest.mark.parametrize("cases", [40, pytest.param(5200, marks=pytest.mark.slow)])
def test_no_junk_makes_the_server_fail(tiny: Path, cases: int) -> None:
    with Served(tiny, max_new_tokens=3) as server:
        assert _junk(server, cases) >= cases * 0.95
        server.until(server.idle)
