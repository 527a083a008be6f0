"""The launcher's command and how an ending comes through it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policyloop.errors import BadInput, Exit
from policyloop.launch import EXITS, LAUNCHERS, Launch, noting_exit
from policyloop.launch.torchrun import command, ending


def test_the_recipe_and_its_flags_follow_after_a_double_dash() -> None:
    made = command(["train", "r.yaml", "--run", "runs/a"], Launch(ranks=4, port=29511))
    assert made[1:4] == ["-m", "torch.distributed.run", "--nnodes"]
    assert made[made.index("--nproc-per-node") + 1] == "4" and made[made.index("--master-port") + 1] == "29511"
    assert made[made.index("--") + 1 :] == ["policyloop", "train", "r.yaml", "--run", "runs/a"]


def test_local_is_this_process() -> None:
    assert LAUNCHERS["local"] is None


@pytest.mark.parametrize(("said", "code"), [([75, 75], 75), ([2, 1], 2), ([1, 75], 75), ([], 1), ([0, 1], 1)])
def test_the_code_that_explains_the_others(tmp_path: Path, said: list[int], code: int) -> None:
    for rank, one in enumerate(said):
        (tmp_path / str(rank)).write_text(json.dumps([one, ""]))
    assert ending(1, tmp_path) == code
    assert ending(0, tmp_path) == Exit.DONE


def test_a_rank_leaves_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXITS, str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(BadInput), noting_exit():
        raise BadInput("this", "that", "there")
    code, said = json.loads((tmp_path / "1").read_text())
    assert code == Exit.BAD_INPUT and "this" in said
