"""Documents against code: every verb, flag, metric, guard, algorithm and part field is written down; links resolve; YAML in the README loads."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from pathlib import Path

import pytest

from policyloop.algorithms import ALGORITHMS, PolicyGradient, Supervised
from policyloop.cli import GROUPS, VERBS
from policyloop.config import load_yaml, slots
from policyloop.monitor.guards import GUARDS
from policyloop.monitor.metrics import METRICS
from policyloop.recipe import from_tree

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
TEXT = "\n".join(p.read_text(encoding="utf-8") for p in PAGES)


def verbs() -> list[tuple[str, str]]:
    grouped = [(f"{group} {verb}", target) for group, (_, table) in GROUPS.items() for verb, (target, _) in table.items()]
    return [*((verb, target) for verb, (target, _) in VERBS.items()), *grouped]


@pytest.mark.parametrize(("verb", "target"), verbs(), ids=lambda x: x)
def test_every_verb_and_flag_is_documented(verb: str, target: str) -> None:
    assert re.search(rf"\b{verb}\b", TEXT), verb
    module, _, function = target.partition(":")
    hints = typing.get_type_hints(getattr(importlib.import_module(f"policyloop.cli.{module}"), function), include_extras=True)
    flags = [
        decl
        for hint in hints.values()
        for meta in getattr(hint, "__metadata__", ())
        for decl in getattr(meta, "param_decls", None) or ()
    ]
    missing = [flag for flag in flags if flag.startswith("--") and flag not in TEXT]
    assert missing == []


@pytest.mark.parametrize("name", [*METRICS, *GUARDS, *ALGORITHMS])
def test_every_metric_guard_and_algorithm_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_every_field_of_every_part_is_documented() -> None:
    parts = [cls for owner in (PolicyGradient, Supervised) for table in slots(owner).values() for cls in table.values()]
    names = {f.name for cls in [*parts, PolicyGradient, Supervised] for f in dataclasses.fields(cls)}
    assert [n for n in sorted(names) if f"`{n}`" not in TEXT] == []
    assert all(inspect.getdoc(cls) for cls in parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_yaml_of_the_readme_loads(name: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        assert from_tree(load_yaml(block)).rl_strategy.group_size == 8
