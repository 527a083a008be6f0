"""The table of tasks and how a name becomes a task."""

import importlib
import os
import subprocess
import sys

import pytest

from policyloop.errors import BadInput, NotFound
from policyloop.tasks import TASKS, DataSettings, load_task


def test_a_data_file_is_a_task(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("question,answer\na,x\nb,y\n")
    assert load_task(DataSettings(task=str(path), grader="text"), 0).name == "jsonl"


def test_unknown_tasks_name_the_known_ones():
    with pytest.raises(NotFound, match=r"'gsm8' does not exist; did you mean gsm8k\?: allowed is gsm8k, word_problems"):
        load_task(DataSettings(task="gsm8"), 0)
    with pytest.raises(NotFound, match="cannot be imported"):
        load_task(DataSettings(task="no_such_module:Task"), 0)


def test_a_task_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "my_own_tasks.py").write_text("def create(settings, seed):\n    return settings.path, seed\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_task(DataSettings(task="my_own_tasks:create", path="x"), 7) == ("x", 7)


def test_every_row_of_the_table_can_be_imported():
    for name in TASKS:
        assert callable(importlib.import_module(f"policyloop.tasks.{name}").load)


@pytest.mark.parametrize("share", [-0.1, 1.0, 5])
def test_shares_outside_their_range(share):
    with pytest.raises(BadInput, match="held_out_share"):
        DataSettings(held_out_share=share)


def test_the_room_opens_without_torch():
    names = ", ".join(f"policyloop.tasks.{name}" for name in (*TASKS, "checking", "writing", "hub"))
    code = f"import sys, {names}; sys.exit('torch' in sys.modules or 'datasets' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
