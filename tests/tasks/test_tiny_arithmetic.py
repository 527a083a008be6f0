"""The tiny task: the border, the demonstrations and their flaws."""

import re
import statistics

import pytest

from policyloop.errors import BadInput
from policyloop.models.tiny import WORDS
from policyloop.tasks import DataSettings, load_task
from policyloop.tasks.tiny_arithmetic import expressions, load, value
from policyloop.types import Completion


@pytest.fixture(scope="module")
def task():
    return load_task(DataSettings(task="tiny_arithmetic"), 0)


def test_expressions_stay_within_a_digit():
    made = list(expressions(3))
    assert len(set(made)) == len(made) == 10 * 9 * 9  # from any digit nine steps of size 1 to 9 stay within 0 to 9
    for e in made:
        assert all(0 <= eval(e[:n]) <= 9 for n in (1, 3, 5))
        assert value(e) == eval(e)
    assert "9-3+2" in made and "0-1+2" not in made


def test_the_border(task):
    train, held = task.train(), task.held_out(1)
    assert len(train) + len(held) == 7290
    assert not {p.text for p in train} & {p.text for p in held}
    assert len(held) == pytest.approx(0.2 * 7290, abs=4 * (7290 * 0.2 * 0.8) ** 0.5)
    assert all(p.target == str(eval(p.text.rstrip("="))) for p in held[:100])
    assert [p.id for p in held] != [p.id for p in task.held_out(2)]


def tokens(text: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9+\-=;#]|\S", text)


def test_demonstrations_have_the_mix_the_flaws_and_the_words(task):
    made = list(task.demonstrations(4000, seed=3))
    assert made == list(task.demonstrations(4000, seed=3))
    border = {p.id for p in task.train()}
    assert all(p.id in border for p, _ in made)
    assert all(set(tokens(answer)) <= set(WORDS) for _, answer in made)
    restated = [a for _, a in made if a.startswith("check")]
    verbose = [a for _, a in made if a.startswith("so")]
    assert len(restated) / 4000 == pytest.approx(0.5, abs=0.04)
    assert len(verbose) / 4000 == pytest.approx(0.4, abs=0.04)
    # Per worked answer 3 steps at 3 %, a few of which cannot slip: about 8 % end wrong or went wrong on the way.
    slipped = [
        a
        for _, a in made
        if any(eval(left) != int(right) for left, right in re.findall(r"(\d[+-]\d)=(\d)", a) if "check" not in a)
    ]
    assert len(slipped) / (4000 - len(restated)) == pytest.approx(0.087, abs=0.03)
    assert statistics.fmean(len(tokens(a)) + 1 for _, a in made) == pytest.approx(27.5, abs=1)


def test_the_three_forms(task):
    answers = {a.split()[0].split("-")[0]: (p, a) for p, a in task.demonstrations(200, 0)}
    prompt, answer = answers["check"]
    assert answer == f"check {prompt.text[:-1]};so {prompt.text}{prompt.target}#{prompt.target}"
    assert all(
        re.fullmatch(r"(so )?\d[+-]\d( is \d[+-]\d)?=\d.*#\d", a) for _, a in task.demonstrations(200, 0) if "check" not in a
    )


def test_supervised_prompts_carry_their_demonstration():
    task = load(DataSettings(options={"demonstrations": 20, "slip": 0.0}), 0)
    prompts = task.train()
    assert len(prompts) == 20
    assert all(p.meta["demonstration"].endswith(f"#{p.target}") for p in prompts)


@pytest.mark.parametrize(
    ("text", "finish", "expected"),
    [
        ("8-6=2#2", "stop", True),
        ("8-6=2#2", "length", False),
        ("8-6=2", "stop", False),
        ("#2#3", "stop", False),
        ("", "stop", False),
    ],
)
def test_right_means_ending_in_the_digit(task, text, finish, expected):
    prompt = next(p for p in task.train() if p.target == "2")
    assert task.grade(prompt, Completion((1,), (2,), (-0.1,), finish, "run#0", text)) is expected


def test_settings_that_its_model_cannot_read():
    with pytest.raises(BadInput, match="23 words"):
        load(DataSettings(system="Be brief."), 0)
    with pytest.raises(BadInput, match="terms = 9"):
        load(DataSettings(options={"terms": 9}), 0)
