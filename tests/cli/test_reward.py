"""`policyloop reward try`: what is scored, and when the answer is no."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyloop.cli import main
from policyloop.cli.reward import changed, readable_form, tried
from policyloop.types import Completion, Prompt

RECIPE = """
model: {base_model_path: tiny}
data: {task: DATA, held_out_share: 0.1}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = "".join(f'{{"question": "What is {n}+{n}?", "answer": "{2 * n}"}}\n' for n in range(40))
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "r.yaml").write_text(RECIPE.replace("DATA", str(tmp_path / "rows.jsonl")))
    return tmp_path / "r.yaml"


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["reward", "try", *arguments])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out + out.err


def test_gold_scores_highest(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, str(config))
    assert code == 0 and "the gold answer scores highest on all 20 rows" in text
    table = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in text.splitlines() if line.startswith("│")}
    assert table == {"gold": "1.000", "empty": "0.000", "shuffled": "0.000", "wrong": "0.000"}


def test_a_reward_that_pays_brevity_is_answered_no(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "short.py").write_text("def short(completions): return [-len(c) for c in completions]\n")
    term = f"rewards.terms=[correct, {{'{config.parent}/short.py:short': {{}}}}]"
    code, text = ask(capsys, str(config), "--rows", "5", "--set", term)
    assert code == 3 and "does not score highest on 5 of 5 rows" in text


def test_a_failing_function_and_a_flat_one_are_told(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "down.py").write_text("def down(completions): raise OSError('no judge')\n")
    code, text = ask(capsys, str(config), "--set", f"rewards.terms=[correct, {{'{config.parent}/down.py:down': {{}}}}]")
    assert code == 3 and "reward down raised OSError: no judge" in text and "(20 none)" in text
    code, text = ask(capsys, str(config), "--set", "rewards.terms=[correct, format]")
    assert code == 0 and "reward format is 0 on every answer tried" in text


def test_a_missing_column_is_bad_input_before_a_model_is_looked_for(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "needs.py").write_text("def f(completions, level): return [0.0] * len(completions)\n")
    code, text = ask(capsys, str(config), "--set", f"rewards.terms=[{{'{config.parent}/needs.py:f': {{}}}}]")
    assert code == 2 and "reward f needs column level" in text


def test_form_without_answer(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ask(capsys, str(config), "--form", "five")
    assert code == 2 and "--form" in text


@pytest.mark.parametrize(
    ("gold", "other"), [("5", "6"), ("19", "10"), ("3.50", "3.51"), ("1/2 cup", "1/3 cup"), ("yes", "none of these")]
)
def test_changed_is_near_and_not_the_gold(gold: str, other: str) -> None:
    assert changed(gold) == other


def test_the_four_answers() -> None:
    worked = Prompt.make("t", "2+3?", "5", {"demonstration": "2+3 makes 5. #### 5"})
    bare = Prompt.make("t", "3+4?", "7")
    texts = [[c.text for c in g.completions] for g in tried([worked, bare], "= {answer}")]
    assert texts == [
        ["2+3 makes 5. #### 5", "", "2+3 makes 5. #### 7", "2+3 makes 5. #### 6"],
        ["= 7", "", "= 5", "= 8"],
    ]


def test_the_form_is_one_that_the_task_reads() -> None:
    def grade(prompt: Prompt, completion: Completion) -> bool | None:
        return completion.text.startswith("<answer>") and (prompt.target or "") in completion.text

    assert readable_form([Prompt.make("t", "2+3?", "5")], grade) == "<answer>{answer}</answer>"


def test_agree_wants_a_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yaml").write_text("model: {base_model_path: tiny}\ndata: {task: word_problems}\n")
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    with pytest.raises(SystemExit) as ended:
        main(["reward", "agree", str(tmp_path / "r.yaml"), str(tmp_path / "pairs.jsonl")])
    assert ended.value.code == 2 and "has no judge" in capsys.readouterr().err
