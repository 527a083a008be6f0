"""Documents against code: every verb, flag, metric, guard, algorithm and part is written down as it is; links resolve; YAML in the README loads."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from policyloop.algorithms import ALGORITHMS, BradleyTerry, PolicyGradient, Preference, Supervised
from policyloop.algorithms.parts.entropy import Entropy
from policyloop.algorithms.parts.kl import KL
from policyloop.algorithms.parts.schedule import SCHEDULES
from policyloop.algorithms.parts.value import ValueLoss
from policyloop.cli import GROUPS, VERBS, _command
from policyloop.config import load_yaml
from policyloop.errors import Exit
from policyloop.monitor.guards import GUARDS, Action
from policyloop.monitor.metrics import METRICS
from policyloop.recipe import Recipe, from_tree
from policyloop.run import MAY_CHANGE
from policyloop.training import HealthSettings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
READMES = ["README.md", "README.zh-CN.md"]
ROWS: dict[str, dict[str, type]] = {  # heading of docs/algorithms.md -> row -> class
    **{slot: dict(table) for cls in (PolicyGradient, Preference) for slot, table in cls.slots.items()},
    "kl": {"kl": KL},
    "entropy": {"entropy": Entropy},
    "value": {"value": ValueLoss},
    "a number": SCHEDULES,
}
PARTS = [(heading, row, cls) for heading, table in ROWS.items() for row, cls in table.items()]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"no heading {heading}"
    return found[1]


def table_row(text: str, name: str) -> str:
    rows = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(rows) == 1, f"{len(rows)} rows of {name}"
    return rows[0]


# --- the command line -------------------------------------------------------------------------------------------------------

VERB_TARGETS = [
    *((verb, target) for verb, (target, _) in VERBS.items()),
    *((f"{group} {verb}", target) for group, (_, table) in GROUPS.items() for verb, (target, _) in table.items()),
]


def flags(verb: str, target: str) -> list[str]:
    return [o for p in _command(verb, target, "").params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")]


def test_flags_are_found_at_all() -> None:
    assert "--resume" in flags("train", VERBS["train"][0])


@pytest.mark.parametrize(("verb", "target"), VERB_TARGETS, ids=lambda x: x)
def test_verb_and_its_flags_are_on_the_page(verb: str, target: str) -> None:
    text = section(page("cli.md"), verb)
    assert f"`policyloop {verb}" in text
    listed = re.findall(r"^\| `(--[a-z-]+)`", text, re.MULTILINE)
    assert [flag for flag in flags(verb, target) if flag not in listed] == []


@pytest.mark.parametrize("code", list(Exit), ids=lambda c: c.name)
def test_exit_codes_are_documented(code: Exit) -> None:
    assert re.search(rf"^\| {int(code)} \|", page("cli.md"), re.MULTILINE)


def test_commands_of_the_readmes_exist() -> None:
    """Every `policyloop VERB` in a code block is a verb, and its flags are that verb's."""
    known = {verb: flags(verb, target) for verb, target in VERB_TARGETS}
    for name in [*READMES, "docs/install.md", "docs/training.md", "docs/evaluation.md"]:
        blocks = re.findall(r"```(?:bash|console)?\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        for line in re.findall(r"^\$? ?policyloop (.*?)(?: #.*)?$", "\n".join(blocks), re.MULTILINE):
            words = line.split()
            verb = " ".join(words[:2]) if words[0] in GROUPS else words[0]
            assert verb in known, (name, line)
            assert [w for w in words if w.startswith("--") and w.partition("=")[0] not in known[verb]] == [], (name, line)


# --- training ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_metric_row_is_the_code_s(name: str) -> None:
    metric = METRICS[name]
    assert table_row(page("training.md"), name) == f"| `{name}` | {metric.unit} | {metric.help} |"


@pytest.mark.parametrize("name", GUARDS)
def test_guard_row_is_the_code_s(name: str) -> None:
    g = GUARDS[name]
    metric = f"`{g.metric}`" + (f" (with `{g.only}`)" if g.only else "")
    cells = (f"`{name}`", metric, f"{g.beyond} {g.limit:g}", str(g.after), g.severity, g.action, g.means, g.change)
    assert table_row(page("health.md"), name) == f"| {' | '.join(cells)} |"
    assert getattr(HealthSettings(), name) == g.limit


def test_every_health_key_and_action_is_documented() -> None:
    names = [*(f.name for f in dataclasses.fields(HealthSettings)), *get_args(Action)]
    assert [name for name in names if f"`{name}`" not in page("health.md") and f" {name}:" not in page("health.md")] == []


def test_keys_that_may_change_on_resume_are_exactly_those_of_the_page() -> None:
    listed = re.search(r"On resume these keys may change.*?: (.*?)\n\n", page("training.md"), re.DOTALL)
    assert listed
    names = [n[:-1] if n.endswith("*") else n for n in re.findall(r"`([a-z_.*]+)`", listed[1])]
    assert sorted(names) == sorted(MAY_CHANGE)


# --- algorithms -------------------------------------------------------------------------------------------------------------


def composition(value: Any) -> str:
    parts = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return ", ".join(
        f"{name} {part!r}" if not isinstance(part, str) else f"{name} {part}" for name, part in parts if part is not None
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_row_is_the_code_s(name: str) -> None:
    assert table_row(section(page("algorithms.md"), "The table"), name) == f"| `{name}` | {composition(ALGORITHMS[name])} |"


@pytest.mark.parametrize(("heading", "row", "cls"), PARTS, ids=lambda x: x if isinstance(x, str) else "")
def test_part_row_names_every_field_with_its_default(heading: str, row: str, cls: type) -> None:
    text = table_row(section(page("algorithms.md"), heading), row)
    for f in dataclasses.fields(cls):
        default = "needed" if f.default is dataclasses.MISSING else f.default
        assert f"`{f.name}` ({default})" in text
    assert inspect.getdoc(cls)


@pytest.mark.parametrize("cls", [PolicyGradient, Supervised, Preference, BradleyTerry])
def test_every_slot_and_field_of_an_algorithm_is_documented(cls: type) -> None:
    assert [f.name for f in dataclasses.fields(cls) if f"`{f.name}`" not in page("algorithms.md")] == []


# --- pages ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_resolve(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (path.parent / t).exists()] == []


@pytest.mark.parametrize("name", READMES)
def test_yaml_of_the_readme_loads(name: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    recipes = [from_tree(load_yaml(block)) for block in blocks]
    assert all(isinstance(r, Recipe) and r.rl_strategy.group_size == 8 for r in recipes)


def test_both_readmes_show_the_same_code() -> None:
    yaml, python = (
        [re.findall(rf"```{kind}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL) for name in READMES]
        for kind in ("yaml", "python")
    )
    assert yaml[0] == yaml[1]
    assert python[0] == python[1]
