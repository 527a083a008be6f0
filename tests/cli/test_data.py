"""`policyloop data` as a user types it."""

import json

import pytest

from policyloop.cli import main
from policyloop.models.tiny import make_tiny


@pytest.fixture
def run(capsys):
    def call(*arguments) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(a) for a in arguments])
        out = capsys.readouterr()
        return int(left.value.code or 0), out.out, out.err

    return call


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.csv"
    path.write_text("frage;loesung;stufe\n" + "".join(f"Was ist {n}+{n}?;{2 * n};1\n" for n in range(20)))
    return path


def test_check_of_a_sound_file(run, good):
    code, out, _ = run("data", "check", good, "--column", "prompt=frage", "--column", "answer=loesung")
    assert code == 0
    assert "columns: prompt = frage, answer = loesung; kept beside them: stufe" in out
    assert "answers: 20 of 20 can be judged by value" in out
    code, _, err = run("data", "check", good)
    assert code == 2
    assert "no column is known as the prompt" in err and "frage, loesung, stufe" in err


def test_check_of_a_faulty_file(run, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "ans\n{"prompt": "c", "answer": "1"}\n{"prompt": "d", "ans')
    code, out, err = run("data", "check", path)
    assert code == 2
    assert "bad.jsonl line 2 is not JSON" in out
    assert "bad.jsonl line 4, the last line, is cut off" in out
    assert "2 faulty rows" in err


def test_check_refuses_leaked_rows(run, tmp_path):
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text("".join(json.dumps({"question": f"How many eggs are {n}?", "answer": n}) + "\n" for n in range(6)))
    test.write_text('{"question": "how many EGGS  are 3?", "answer": 3}\n')
    code, out, err = run("data", "check", train, "--eval", test)
    assert code == 2
    assert "overlap: 1 exact" in out
    assert "1 of 1 held-out questions are also in the training rows" in err


def test_convert_and_back(run, good, tmp_path):
    out = tmp_path / "out.jsonl"
    code, said, _ = run("data", "convert", good, out, "--column", "prompt=frage", "--column", "answer=loesung")
    assert (code, said) == (0, f"20 rows written to {out}\n")
    assert json.loads(out.read_text().splitlines()[3]) == {"prompt": "Was ist 3+3?", "answer": "6", "stufe": "1"}
    code, said, _ = run("data", "check", out)
    assert code == 0 and "columns: prompt = prompt, answer = answer; kept beside them: stufe" in said
    assert run("data", "convert", out, out)[0] == 1
    assert run("data", "convert", "word_problems", tmp_path / "w.jsonl")[0] == 2


def test_preview_shows_what_is_supervised(run, tmp_path):
    model = make_tiny(tmp_path / "tiny")
    code, out, _ = run("data", "preview", "tiny_arithmetic", "--model", model, "--rows", 2)
    assert code == 0
    first = out.split("--- 2:")[0].splitlines()
    text = next(line for line in first if line.startswith("text: ")).removeprefix("text: ")
    digit = eval(text.rstrip("="))
    assert f"rendered ({len(text) + 1} tokens): {'<bos>' + text!r}" in first
    assert f"supervised (2 of {len(text) + 3} tokens): '«{digit}»«<eos>»'" in first
    assert first[-1] == f"answer: '{digit}', read as the number {digit}"


def test_a_recipe_names_data_and_model(run, tmp_path, good):
    model = make_tiny(tmp_path / "tiny")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model: {{base_model_path: '{model}'}}\ndata: {{task: tiny_arithmetic}}\n")
    code, out, _ = run("data", "check", recipe)
    assert code == 0
    assert "prompt tokens: median 9, 95 % 9, longest 9" in out
    assert run("data", "check", recipe, "--set", "data.task=nonsense")[0] == 2
