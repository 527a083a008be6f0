"""docs/rewards.md does what it says: its functions run, its commands print that, its tables name everything there is."""

from __future__ import annotations

import dataclasses
import doctest
import re
import shlex
from pathlib import Path
from typing import get_type_hints

import pytest

from policyloop.cli import main
from policyloop.config import build, load_yaml
from policyloop.rewards import REWARDS, RangeControl, RewardsSettings, TokenEfficiency

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:`([\w.]+)`\n)?```(\w+)\n(.*?)```", PAGE, re.DOTALL)
ROWS = [[c.strip() for c in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def expect(want: str, got: str) -> None:
    assert doctest.OutputChecker().check_output(want, got, SAME), f"the page says\n{want}\nand this is\n{got}"


def test_functions_commands_and_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done: list[str] = []
    for name, language, body in BLOCKS:
        if name:
            Path(name).write_text(body, encoding="utf-8")
        elif language == "console":
            for command, want in re.findall(r"\$ policyloop (.*)\n((?:(?!\$ ).*\n)*)", body):
                with pytest.raises(SystemExit) as ended:
                    main(shlex.split(command))
                out = capsys.readouterr()
                expect(want, out.out + out.err)
                done.append(f"exit {ended.value.code}")
        elif language == "python":
            exec(compile(body, "docs/rewards.md", "exec"), {"__name__": "page"})
            expect("".join(f"{line[2:]}\n" for line in body.splitlines() if line.startswith("# ")), capsys.readouterr().out)
            done.append(language)
        else:
            build(RewardsSettings, load_yaml(body)["rewards"], "rewards")
            done.append(language)
    assert done == ["exit 0", "exit 3", "python", "yaml"]


def defaults(cls: type) -> dict[str, object]:
    return {f.name: None if f.default is dataclasses.MISSING else f.default for f in dataclasses.fields(cls)}


def test_the_table_of_rewards_is_complete() -> None:
    """Every reward, every field of it, and the default where the page states one."""
    rows = {row[0].strip("`"): row[2] for row in ROWS if len(row) == 3 and row[0].strip("`") in REWARDS}
    assert list(rows) == list(REWARDS)
    for name, fields in rows.items():
        stated = dict(re.findall(r"`(\w+)` ?([\w.]*)", fields))
        own = defaults(REWARDS[name])
        assert set(stated) == set(own)
        for field, value in stated.items():
            assert not value or value in (str(own[field]).lower(), f"{own[field]:g}" if isinstance(own[field], float) else ""), (
                field
            )


@pytest.mark.parametrize("cls", [RewardsSettings, TokenEfficiency])
def test_every_setting_stands_on_the_page(cls: type) -> None:
    named = {field for row in ROWS for field in re.findall(r"`(\w+)`", row[0])}
    assert set(get_type_hints(cls)) - {"slots", "import_paths"} <= named
    assert all(f"{f.name}" in PAGE for f in dataclasses.fields(RangeControl))
