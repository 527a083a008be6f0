"""A user's function: what it gets, what it may return, and what happens when it does not."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scoring import group, parts, said, scorer, values

from policyloop.errors import BadInput
from policyloop.rewards import Correct, Function, Given, RewardsSettings
from policyloop.types import Completion, Message, Prompt

TWO = [group(["a", "b"], "5", level=1), group(["c", "d"], "6", level=2)]


# --- B01: one number per completion -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "said_of_it"),
    [
        ([1.0], "returned 1 values"),
        ([1.0] * 5, "returned 5 values"),
        (1.0, "returned 1.0"),
        (None, "returned None"),
        ({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, "returned {"),
        ("1111", "returned '1111'"),
    ],
)
def test_b01_nothing_is_broadcast(returned: Any, said_of_it: str) -> None:
    def one_for_all(completions: list[str], **kw: Any) -> Any:
        return returned

    with pytest.raises(BadInput, match="reward one_for_all") as problem:
        scorer(one_for_all, TWO).score(TWO)
    assert said_of_it in str(problem.value) and "4" in str(problem.value)


def test_any_sequence_of_numbers() -> None:
    for returned in (np.arange(4, dtype=np.float32), (0, 1, 2, 3), iter([False, True, 2, 3.0])):
        assert values(scorer(lambda completions, r=returned: r, TWO).score(TWO)[0]) == [0.0, 1.0, 2.0, 3.0]


# --- B06: four kinds of async -----------------------------------------------------------------------------------------------


async def slow(completions: list[str]) -> list[float]:
    await asyncio.sleep(0.3)
    return [float(ord(c)) for c in completions]


class Judge:
    async def __call__(self, completions: list[str]) -> list[float]:
        return await slow(completions)


def wrapped(completions: list[str]) -> Awaitable[list[float]]:
    return slow(completions)


def plain(completions: list[str]) -> list[float]:
    time.sleep(0.3)
    return [-1.0] * len(completions)


def test_b06_all_kinds_are_awaited_together_and_land_in_their_column() -> None:
    kinds: dict[str, Callable[..., Any]] = {
        "function": slow,
        "partial": functools.partial(slow),
        "object": Judge(),
        "wrapped": wrapped,
        "sync": plain,
    }
    settings = RewardsSettings(terms=tuple(Given(function=f, name=n) for n, f in kinds.items()))
    start = time.perf_counter()
    scored, _ = scorer(settings, TWO).score(TWO)
    assert time.perf_counter() - start < 0.9  # one after another: 1.5 s
    for name in kinds:
        assert parts(scored, name) == ([-1.0] * 4 if name == "sync" else [97.0, 98.0, 99.0, 100.0])


def test_b06_inside_a_running_loop() -> None:
    async def cell() -> list[float | None]:
        return values(scorer(slow, TWO).score(TWO)[0])

    assert asyncio.run(cell()) == [97.0, 98.0, 99.0, 100.0]


def test_a_client_kept_between_steps_stays_usable() -> None:
    """Things of asyncio belong to one loop; a fresh loop per step would break the user's HTTP client at step 2."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def f(completions: list[str]) -> list[float]:
        loops.append(asyncio.get_running_loop())
        return [1.0] * len(completions)

    s = scorer(f, TWO)
    s.score(TWO)
    s.score(TWO)
    assert loops[0] is loops[1] and not loops[0].is_closed()


# --- B11, B12: arguments ----------------------------------------------------------------------------------------------------


def test_b11_each_gets_what_it_declares() -> None:
    got: dict[str, Any] = {}

    def only(completions: Any) -> list[float]:
        got["only"] = completions
        return [0.0] * 4

    def gold(completions: Any, answer: Any, level: Any, colour: Any = "none") -> list[float]:
        got["gold"] = (answer, level, colour)
        return [0.0] * 4

    def all_of_it(prompts: Any, completions: Any, **kw: Any) -> list[float]:
        got["prompts"], got["kw"] = prompts, kw
        return [0.0] * 4

    def keyword(*, completion_ids: Any, target: Any) -> list[float]:
        got["keyword"] = (completion_ids, target)
        return [0.0] * 4

    scorer(RewardsSettings(terms=tuple(Given(function=f) for f in (only, gold, all_of_it, keyword))), TWO).score(TWO)
    assert got["only"] == ["a", "b", "c", "d"]
    assert got["gold"] == (["5", "5", "6", "6"], [1, 1, 2, 2], "none")
    assert got["prompts"] == [g.prompt.text for g in TWO for _ in range(2)]
    assert set(got["kw"]) == {"answer", "target", "level", "completion_ids"}
    assert got["kw"]["level"] == [1, 1, 2, 2]
    assert got["keyword"] == ([[0]] * 4, ["5", "5", "6", "6"])


def test_a_chat_prompt_is_its_messages() -> None:
    prompt = Prompt.make("t", (Message("system", "Be brief."), Message("user", "2+3?")), "5")
    got: list[Any] = []
    groups = [group(["5"])]
    groups = [type(groups[0])("u", prompt, groups[0].completions)]
    scorer(lambda prompts: got.append(prompts) or [1.0], groups, name="f").score(groups)
    assert got == [[[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+3?"}]]]


def test_b12_a_missing_column_is_named_before_anything_runs() -> None:
    def f(completions: Any, answer: Any) -> list[float]:
        return [1.0] * len(completions)

    groups = [group(["a"], target=None, solution="5", topic="sums")]
    with pytest.raises(BadInput, match=r"reward f needs column answer.*columns: solution, topic"):
        scorer(f, groups)
    with pytest.raises(BadInput, match="reward g needs column completions"):
        scorer(eval("lambda completions, /: [1.0]"), groups, name="g")


def test_one_completion_at_a_time() -> None:
    """A function of `completion` is called once per row, some at once; one that fails costs its own row only."""
    running, most = 0, 0

    async def judge(prompt: str, completion: str, level: int) -> float | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        assert str(level) in prompt
        return {"a": 1.0, "b": None}.get(completion, 1 / (ord(completion) - ord("c")) if completion < "e" else math.inf)

    groups = [*TWO, group(["e"], level=3)]
    scored, counters = scorer(judge, groups, concurrency=2).score(groups)
    assert values(scored) == [1.0, None, None, 1.0, None]
    assert math.isnan(scored[0].scores[1].components["judge"])
    assert scored[0].scores[1].info == {}  # b does not apply; c raised; e is infinite
    assert counters["reward/failed/judge"] == counters["reward/unscored/judge"] == 2
    assert most == 2


# --- failures ---------------------------------------------------------------------------------------------------------------


def test_an_exception_is_counted_named_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(completions: list[str]) -> list[float]:
        raise ZeroDivisionError("no judge")

    s = scorer(RewardsSettings(terms=(Correct(), Given(function=broken))), TWO)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            scored, counters = s.score(TWO)
            assert values(scored) == [None] * 4  # and not 0
            assert counters["reward/failed/broken"] == 4  # of this step, so that a resumed run logs the same
    assert s.problems() == ["reward broken raised ZeroDivisionError: no judge"]
    assert [r.getMessage() for r in caplog.records].count(s.problems()[0] + "; such completions are unscored and counted") == 1


def test_what_is_no_number() -> None:
    s = scorer(lambda completions: ["1.0", 1.0, [2.0], 3 + 0j], TWO, name="f")
    scored, counters = s.score(TWO)
    assert values(scored) == [None, 1.0, None, None] and counters["reward/failed/f"] == 3
    assert s.problems() == ["reward f returned '1.0', which is no finite number"]


def test_leaving_the_interpreter_is_a_failure_like_others() -> None:
    scored, counters = scorer(lambda completions: exit(), TWO, name="f").score(TWO)
    assert values(scored) == [None] * 4 and counters["reward/failed/f"] == 4


def test_late_calls_are_unscored_and_do_not_pile_up() -> None:
    hanging, started = threading.Event(), []

    def hang(completions: list[str]) -> list[float]:
        started.append(1)
        hanging.wait(20)
        return [1.0] * len(completions)

    async def dawdle(completions: list[str]) -> list[float]:
        await asyncio.sleep(20)
        return [1.0] * len(completions)

    settings = RewardsSettings(terms=tuple(Given(function=f, timeout_s=0.05) for f in (hang, dawdle)))
    s = scorer(settings, TWO)
    try:
        for _ in range(8):
            start = time.perf_counter()
            scored, counters = s.score(TWO)
            assert time.perf_counter() - start < 2
            assert values(scored) == [None] * 4
            assert counters["reward/late/hang"] == counters["reward/late/dawdle"] == 4
        assert s.problems()[0] == "reward hang took longer than 0.05 s"
        assert len(started) == 5
    finally:
        hanging.set()
    deadline = time.monotonic() + 5  # once they are back, calls start again
    while len(started) == 5 and time.monotonic() < deadline:
        s.score(TWO)
    assert len(started) == 6


def test_a_rewards_fault_hides_no_other_ones_result() -> None:
    def f(completions: list[str]) -> list[float]:
        raise RuntimeError

    groups = [group([said("5"), said("6")])]
    settings = RewardsSettings(terms=(Correct(), Given(function=f)))
    scored, _ = scorer(settings, groups).score(groups)
    assert parts(scored, "correct") == [1.0, 0.0] and [s.metric for s in scored[0].scores] == [1.0, 0.0]


# --- import paths -----------------------------------------------------------------------------------------------------------

MINE = """
from __future__ import annotations
from dataclasses import dataclass
from own_words import COUNT

@dataclass
class Rubric:
    most: int = COUNT
    def __call__(self, completions: list[str]) -> list[float]:
        return [float(len(c) <= self.most) for c in completions]

def score(completions): return [float(len(c)) for c in completions]
PI = 3.14
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_rewards.py").write_text(MINE)
    (tmp_path / "own_words.py").write_text("COUNT = 1\n")
    (tmp_path / "broken_rewards.py").write_text("def score(completions:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def by_path(path: str) -> list[float | None]:
    groups = [group(["a", "bb"])]
    s = scorer(RewardsSettings(terms=(Function(path=path),)), groups)
    assert s.names == [path.rpartition(":")[2]]
    return values(s.score(groups)[0])


def test_import_paths(folder: Path) -> None:
    assert by_path("own_rewards:score") == [1.0, 2.0]  # from the working folder, as with python -m
    assert by_path("own_rewards.py:score") == [1.0, 2.0]
    assert by_path(f"{folder}/own_rewards.py:Rubric") == [1.0, 0.0]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere.py:score", "No such file"),
        ("own_rewards.py:scores", "no attribute 'scores'"),
        ("no_such_module:score", "No module named"),
        ("broken_rewards.py:score", "SyntaxError"),
        ("own_rewards.py:PI", "a function"),
        ("own_rewards.py", "pkg.mod:name or file.py:name"),
    ],
)
def test_a_path_that_leads_nowhere(folder: Path, path: str, why: str) -> None:
    with pytest.raises(BadInput, match=f"reward '{path}") as problem:
        by_path(path)
    assert why in str(problem.value)


@pytest.mark.parametrize("bad", [{"timeout_s": 0.0}, {"concurrency": 0}])
def test_limits_that_allow_nothing(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(bad))):
        Function(path="my.py:f", **bad)


def test_empty_completion() -> None:
    groups = [group([Completion((1,), (), (), "stop", "t#0", "")])]
    scored, _ = scorer(lambda completions, completion_ids: [len(completions[0]) + len(completion_ids[0])], groups).score(groups)
    assert values(scored) == [0.0]


HANGS = """
import sys, time
sys.path[:0] = {path!r}
from policyloop.rewards import Given, RewardsSettings
from policyloop.rewards.scorer import Scorer
from policyloop.types import Completion, Group, Prompt

def hang(completions):
    time.sleep(1000)

prompt = Prompt.make("t", "q", "5")
groups = [Group("g", prompt, (Completion((1,), (2,), (0.0,), "stop", "t#0", "5"),))]
terms = (Given(function=hang, timeout_s=0.2),)
scorer = Scorer.from_settings(RewardsSettings(terms=terms), grade=lambda p, c: True, prompts=[prompt], max_new_tokens=8)
found, counters = scorer.score(groups)
print(found[0].scores[0].value, counters["reward/late/hang"])
"""


def test_a_hanging_function_does_not_hold_the_process_s_exit() -> None:
    """A thread cannot be stopped; the interpreter must leave all the same."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS.format(path=[p for p in sys.path if p])], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "None 1.0")
