"""`policyloop evaluate | compare | report | chat` as a user meets them, on the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from policyloop.cli import main
from policyloop.cli.console import bar
from policyloop.cli.evaluate import described
from policyloop.evaluation.evaluate import Evaluation, Item


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def saved(path: Path, right: int, n: int = 100, length: int = 10, **decoding: int) -> Path:
    items = tuple(Item(f"p{i}", f"p{i}", 0, i < right, length, False, "") for i in range(n))
    Evaluation(path.stem, "t", {"task": "t", "decoding": {"max_new_tokens": 64, "n": 1, **decoding}}, items).save(path)
    return path


def test_evaluate_then_compare_saved_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--task", "tiny_arithmetic", "--template", "plain", "--max-new-tokens", "8")
    code, out, _ = ask(
        capsys, "evaluate", "tiny", *common, "--prompts", "12", "--temperature", "1", "--samples", "2", "--save", "e.json"
    )
    assert code == 0 and "tiny on tiny_arithmetic: accuracy 0." in out and "(n = 24)" in out and "pass@2" in out
    assert "decoding: max_new_tokens 8, temperature 1.0, seed 1, n 2" in out and "data: tiny arithmetic" in out
    tree = json.loads((tmp_path / "e.json").read_text())
    assert len(tree["items"]) == 24 and tree["about"]["model"] == "tiny" and tree["about"]["data"]["task"] == "tiny_arithmetic"
    code, out, _ = ask(capsys, "compare", "e.json", "e.json", "--save", "c.json")
    assert code == 4 and "INCONCLUSIVE" in out and json.loads((tmp_path / "c.json").read_text())["n"] == 24
    code, _, err = ask(capsys, "compare", "e.json", "tiny", *common, "--prompts", "12", "--temperature", "0.5", "--samples", "2")
    assert code == 2 and "differ in temperature: 1.0 and 0.5" in err


def test_the_limit_of_a_recipe_is_taken_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = "model: {base_model_path: tiny, template: plain}\ndata: {task: tiny_arithmetic}\nrollout: {max_new_tokens: 5}\n"
    (tmp_path / "r.yaml").write_text(recipe)
    code, out, _ = ask(capsys, "evaluate", "tiny", "--task", "r.yaml", "--prompts", "3")
    assert code == 0 and "decoding: max_new_tokens 5," in out
    code, out, _ = ask(capsys, "evaluate", "tiny", "--task", "r.yaml", "--prompts", "3", "--max-new-tokens", "4")
    assert "decoding: max_new_tokens 4," in out


@pytest.mark.parametrize(
    ("right", "length", "code", "verdict"), [(80, 10, 0, "SHIP"), (20, 10, 3, "HOLD"), (51, 10, 4, "INCONCLUSIVE")]
)
def test_the_exit_code_is_the_verdict(
    right: int, length: int, code: int, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = saved(tmp_path / "a.json", 50), saved(tmp_path / "b.json", right, length=length)
    found, out, _ = ask(capsys, "compare", str(a), str(b))
    assert found == code and f"{verdict}: " in out


def test_margin_base_and_allow_reach_the_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start, a, b = (
        saved(tmp_path / "s.json", 50, 400, 10),
        saved(tmp_path / "a.json", 50, 400, 30),
        saved(tmp_path / "b.json", 50, 400, 15),
    )
    code, out, _ = ask(capsys, "compare", str(a), str(b), "--base", str(start))
    assert code == 0 and "excess length reduction: 75%" in out
    assert ask(capsys, "compare", str(a), str(b), "--margin", "0.001")[0] == 4
    other = saved(tmp_path / "o.json", 50, max_new_tokens=32)
    code, _, err = ask(capsys, "compare", str(a), str(other))
    assert code == 2 and "--allow max_new_tokens" in err
    assert ask(capsys, "compare", str(a), str(other), "--allow", "max_new_tokens")[0] in (0, 3, 4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "tiny", "tiny"), "tiny is a model and --task is missing"),
        (("evaluate", "no-such-model", "--task", "tiny_arithmetic"), "no model no-such-model"),
        (("evaluate", "tiny", "--task", "no_such_task"), "task 'no_such_task' does not exist"),
        (("evaluate", "tiny", "--task", "tiny_arithmetic", "--samples", "3"), "3 times the same answer"),
        (("report", "nowhere"), "nowhere holds no run"),
        (("chat", "tiny@nothing"), "tiny is not in store"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ask(capsys, *arguments)
    assert code == 2 and said in err and len(err.strip().splitlines()) == 1


def test_chat_asks_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ask(capsys, "chat", "tiny", "--prompt", "1+2=", "--template", "plain", "--max-new-tokens", "4")
    assert code == 0 and len(out.splitlines()) == 1


def test_difficulties_are_named_where_there_are_several() -> None:
    items = [Item(f"p{i}", f"p{i}", 0, i % 3 == 0, i, False, "", level="easy" if i < 9 else "hard") for i in range(18)]
    conditions = {"decoding": {"max_new_tokens": 9, "temperature": 0, "seed": 1, "n": 1}, "parser": {"grader": "g"}}
    text = "\n".join(described(Evaluation("v", "t", conditions, tuple(items))))
    assert "(easy: -0." in text and "hard: -0." in text
    alike = [Item("p", "p", 0, False, 3, False, "")]
    assert "none to be had" in "\n".join(described(Evaluation("v", "t", conditions, tuple(alike))))


def test_progress_goes_to_stderr_in_plain_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 12.0, 13.0, 40.0, 50.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    with bar("run#3") as progress:
        progress(1, 4)  # 12 s after the start
        progress(2, 4)  # too soon for a second line
        progress(3, 4)
        progress(4, 4)  # the result says that it is done
    out = capsys.readouterr()
    assert out.out == "" and out.err.splitlines() == ["run#3: 1/4, 36 s left", "run#3: 3/4, 13 s left"]
