"""docs/models.md does what it says: its commands and Python run, its tables name every key and every model."""

import dataclasses
import doctest
import re
from pathlib import Path

import pytest

from policyloop.cli import main
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.catalogue import CATALOGUE

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def expect(want: str, got: str) -> None:
    assert doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS), f"the page says\n{want}\nand this is\n{got}"


def test_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path))
    bodies = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for body in bodies:
        exec(compile(body, "docs/models.md", "exec"), {"__name__": "page"})
        expect("".join(f"{line[2:]}\n" for line in body.splitlines() if line.startswith("# ")), capsys.readouterr().out)
    assert len(bodies) == 2


def test_the_command_prints_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path))
    ((command, want),) = re.findall(r"```console\n\$ policyloop ([^\n]*)\n(.*?)```", PAGE, re.DOTALL)
    with pytest.raises(SystemExit):
        main(command.split())
    expect(want, capsys.readouterr().out)


def test_every_key_and_every_model_has_a_row() -> None:
    rows = " ".join(line for line in PAGE.splitlines() if line.startswith("|"))
    for name in [f.name for c in (ModelSettings, LoraSettings) for f in dataclasses.fields(c)] + list(CATALOGUE):
        assert f"`{name}`" in rows, name
