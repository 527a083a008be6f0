"""The command line as a user meets it: help without torch, mistakes in one sentence, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from policyloop.cli import GROUPS, VERBS, flags_alike, main
from policyloop.errors import BadInput, Conflict, Interrupted, No, Undecided


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "policyloop", *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_help_lists_every_verb_without_torch() -> None:
    code = (
        "import sys\nfrom policyloop.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as left:\n    assert left.code == 0\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert all(f" {verb} " in done.stdout for verb in (*VERBS, *GROUPS))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "Missing argument"),
        (["train", "x.yaml", "--nope"], "No such option: --nope"),
        (["train", "no-such-file.yaml"], "no-such-file.yaml cannot be read"),
        (["show", "no-such-file.yaml", "--set", "x"], "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = cli(*arguments)
    assert done.returncode == 2 and said in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_rooms_that_need_no_torch() -> None:
    """Where torch cannot be imported these still can: the gateway's image will have none."""
    code = (
        "import sys\n"
        "class No:\n    def find_spec(self, name, *rest):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers', 'peft'):\n            raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "import policyloop.types, policyloop.errors, policyloop.config, policyloop.stats, policyloop.monitor.metrics\n"
        "import policyloop.monitor.guards, policyloop.models, policyloop.engine, policyloop.rewards, policyloop.tasks\n"
        "import policyloop.rollout, policyloop.training, policyloop.evaluation, policyloop.spellings, policyloop.cli\n"
        "import policyloop.store.moves, policyloop.store.objects, policyloop.store.retention, policyloop.store.verify, policyloop.training.register\n"
        "import policyloop.journal.feedback, policyloop.journal.writer, policyloop.collect.curate, policyloop.collect.duckdb\n"
        "import policyloop.collect.forget, policyloop.collect.trace, policyloop.triggers"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_windows_gets_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    said = capsys.readouterr().err
    assert left.value.code == 2 and "WSL2" in said and len(said.splitlines()) == 1


def test_a_verb_that_cannot_load_breaks_only_itself(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(VERBS, "demo", ("no_such_module:demo", "gone"))
    with pytest.raises(SystemExit) as left:
        main(["init", "--help"])
    assert left.value.code == 0 and "recipe" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (BadInput("a", "b", "c"), 2),
        (Conflict("a"), 1),
        (No("a"), 3),
        (Undecided("a"), 4),
        (Interrupted("a"), 75),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise raised

    monkeypatch.setattr("policyloop.cli.app", lambda: type("C", (), {"main": staticmethod(fail)})())
    with pytest.raises(SystemExit) as left:
        main(["init"])
    assert left.value.code == code


def test_what_is_no_problem_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("policyloop.cli.app", lambda: type("C", (), {"main": staticmethod(fail)})())
    with pytest.raises(ZeroDivisionError):
        main(["init"])


def test_init_show_and_the_plan(tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    assert cli("init", str(target), "--recipe", "tiny-grpo").returncode == 0
    assert cli("init", str(target)).returncode == 1  # it is there already and is not overwritten
    done = cli("show", str(target), "--plan", "--set", "model.base_model_path=tiny", "--set", "training.steps=3")
    assert done.returncode == 0, done.stderr
    assert "base_model_path: tiny" in done.stdout and "plan: 3 steps of 32 prompts x 8 = 256 sequences" in done.stdout


def test_dashes_and_underscores_are_alike() -> None:
    assert flags_alike(["train", "--batch_size", "4", "--save_steps=a_b", "my_file.yaml"]) == [
        "train", "--batch-size", "4", "--save-steps=a_b", "my_file.yaml",
    ]  # fmt: skip
