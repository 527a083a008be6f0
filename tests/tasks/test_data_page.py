"""docs/data.md does what it says: files are written, commands and Python run, tables name everything there is."""

import dataclasses
import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest

from policyloop.cli import main
from policyloop.tasks import TASKS, DataSettings
from policyloop.tasks.columns import KNOWN

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:`([\w.]+)`\n)?```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SAME = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def expect(want: str, got: str) -> None:
    assert doctest.OutputChecker().check_output(want, got, SAME), f"the page says\n{want}\nand this is\n{got}"


def test_files_commands_and_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    done = 0
    for name, language, body in BLOCKS:
        if name:
            Path(name).write_text(body, encoding="utf-8")
        elif language == "console":
            for command, want in re.findall(r"\$ policyloop (.*)\n((?:(?!\$ ).*\n)*)", body):
                with pytest.raises(SystemExit):
                    main(shlex.split(command))
                out = capsys.readouterr()
                expect(want, out.out + out.err)
                done += 1
        elif language == "python":
            exec(compile(body, "docs/data.md", "exec"), {"__name__": "page"})
            expect("".join(f"{line[2:]}\n" for line in body.splitlines() if line.startswith("# ")), capsys.readouterr().out)
            done += 1
    assert done == 8


def test_the_tables_are_complete():
    rows = {
        cells[0]: cells
        for line in PAGE.splitlines()
        if line.startswith("|")
        for cells in [[c.strip(" `") for c in line.split("|")[1:-1]]]
    }
    for task in TASKS:
        options = getattr(importlib.import_module(f"policyloop.tasks.{task}"), "Options", None)
        named = re.findall(r"\w+", rows[task][3].replace("`", ""))
        assert named == ([f.name for f in dataclasses.fields(options)] if options else ["none"])
    fields = [name for first in rows for name in re.findall(r"\w+", first)]
    assert [f.name for f in dataclasses.fields(DataSettings) if f.name not in fields] == []
    for role, names in KNOWN.items():
        assert rows[role][1].split(", ") == list(names)
