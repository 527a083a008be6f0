"""The gateway's configuration: strict, in one sentence, and as docs/gateway.md says."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from policyloop import gateway as room
from policyloop.config import load_yaml
from policyloop.errors import BadInput
from policyloop.gateway import GatewaySettings, load
from policyloop.monitor.metrics import GATEWAY

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
TABLES = [cls for name, cls in vars(room).items() if name.endswith("Settings") and name != "JournalSettings"]


def tree(**changes: Any) -> dict[str, Any]:
    model = {"name": "m", "backends": [{"url": "http://x:1"}], **changes.pop("model", {})}
    return {"gateway": {"models": [model], **changes}}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "no gateway"),
        ({"gateway": {"models": []}}, "models is empty"),
        (tree(model={"backends": []}), "backends is empty"),
        (tree(model={"backends": [{"url": "x:1"}]}), "http://host:port"),
        (tree(model={"release": {"steps": [0.5, 0.25]}}), "rising shares"),
        (tree(model={"release": {"steps": [0.5, 1]}}), "rising shares"),
        (tree(model={"release": {"alpha": 0}}), "alpha"),
        (tree(model={"release": {"mode": "sideways"}}), "canary, blue_green"),
        (tree(model={"balance": "random"}), "round_robin"),
        (tree(model={"release": {"signals": {"errors": {"margin": 1.5}}}}), "margin"),
        (tree(poll_s=0), "poll_s"),
        (tree(port=99999), "port"),
        (tree(models=[tree()["gateway"]["models"][0]] * 2), "each name once"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        load(given)


def test_the_page_s_examples_load() -> None:
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL):
        assert isinstance(load(load_yaml(block)), GatewaySettings)


@pytest.mark.parametrize("cls", TABLES, ids=lambda c: c.__name__)
def test_every_field_is_on_the_page(cls: type) -> None:
    assert [f.name for f in dataclasses.fields(cls) if f"| `{f.name}` |" not in PAGE] == []


def test_every_metric_row_is_the_code_s() -> None:
    for name, m in GATEWAY.items():
        assert f"| `{name}` | {m.kind} | {', '.join(m.labels) or '–'} | {m.help} |" in PAGE


def test_the_room_imports_without_torch() -> None:
    code = "import sys, policyloop.gateway.server, policyloop.rewards.math; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
