"""docs/serving.md against the code: every metric's row, every setting, every route."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from policyloop.config import build, load_yaml
from policyloop.monitor.metrics import SERVING, service_name
from policyloop.serve import ServeSettings

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVING)
def test_metric_row_is_the_code_s(name: str) -> None:
    m = SERVING[name]
    assert f"| `{service_name(name)}` | {m.kind} | {', '.join(m.labels) or '–'} | {m.unit} | {m.help} |\n" in PAGE


def test_names_say_their_kind_and_unit() -> None:
    for name, metric in SERVING.items():
        assert (metric.kind == "counter") == name.endswith("_total"), name
        assert metric.unit != "seconds" or "_seconds" in name, name
        assert set(metric.labels) <= {"version", "route", "code", "backend", "arm", "stage", "rank", "reason"}, name


def test_the_yaml_of_the_page_names_every_setting_with_its_default() -> None:
    block = PAGE.partition("```yaml\n")[2].partition("```")[0]
    tree = load_yaml(block)["serve"]
    assert list(tree) == [f.name for f in dataclasses.fields(ServeSettings)]
    assert build(ServeSettings, tree, "serve") == ServeSettings()
