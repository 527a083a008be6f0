"""A user's reward function: sync or async, whatever arguments it declares; late or failing calls leave rows unscored and are counted.

It gets, by name, what it declares of: prompts, completions (texts), completion_ids, answer/target, and any column of the data; with
**kwargs all of it. One call for all rows, aligned by row. It returns one number per row: None = does not apply, NaN or infinity = unscored.

Example:
    def brevity(completions, answer, **rest):
        return [1.0 / (1 + len(text)) for text in completions]
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from policyloop.errors import BadInput
from policyloop.rewards import Context, Function, Row

ALWAYS = ("prompts", "completions", "completion_ids", "answer", "target")


class FunctionReward:
    """One function, its declared arguments checked at start."""

    def __init__(self, name: str, function: Callable[..., Any], timeout_s: float, context: Context) -> None:
        self.name, self.function, self.timeout_s = name, function, timeout_s
        self.counters = {"failed": 0, "late": 0}
        self.first_problem: str | None = None
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as problem:
            raise BadInput(f"reward {name} is not a function one can call ({problem})", "a function", "rewards") from problem
        self.everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.declared = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        required = [p.name for p in parameters if p.default is p.empty and p.name in self.declared]
        known = {*ALWAYS, *context.columns}
        if missing := [n for n in required if n not in known]:
            there = ", ".join(sorted(known))
            raise BadInput(f"reward {name} needs column {missing[0]}", f"one of the columns there are: {there}", "the function or data.columns")
        self.columns = sorted(context.columns) if self.everything else [n for n in self.declared if n in known]

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        try:
            async with asyncio.timeout(self.timeout_s):
                values = await self._call(self._arguments(rows))
        except TimeoutError:
            return self._unscored("late", len(rows), f"took longer than {self.timeout_s} s")
        except Exception as problem:  # the user's code may raise anything; it is counted and shown, never swallowed
            return self._unscored("failed", len(rows), f"{type(problem).__name__}: {problem}")
        values = list(values) if isinstance(values, Sequence) or hasattr(values, "__iter__") else [values]
        if len(values) != len(rows):
            raise BadInput(f"reward {self.name} returned {len(values)} values for {len(rows)} completions", f"{len(rows)}", "the function")
        return [self._number(v) for v in values]

    async def _call(self, arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(getattr(self.function, "__call__", None)):  # noqa: B004
            return await self.function(**arguments)
        value = await in_daemon_thread(lambda: self.function(**arguments))
        return await value if inspect.isawaitable(value) else value

    def _arguments(self, rows: Sequence[Row]) -> dict[str, Any]:
        built = {
            "prompts": lambda: [_prompt(r) for r in rows],
            "completions": lambda: [r.completion.text for r in rows],
            "completion_ids": lambda: [list(r.completion.token_ids) for r in rows],
            "answer": lambda: [r.prompt.meta.get("answer", r.prompt.target) for r in rows],
            "target": lambda: [r.prompt.target for r in rows],
        }
        wanted = [*built, *self.columns] if self.everything else self.declared
        return {
            n: built[n]() if n in built else [r.prompt.meta.get(n) for r in rows]
            for n in wanted
            if n in built or n in self.columns
        }

    def _number(self, value: Any) -> float | None:
        if value is None:
            return math.nan
        try:
            number = float(value)
        except (TypeError, ValueError):
            return self._unscored("failed", 1, f"returned {value!r}, which is not a number")[0]
        return number if math.isfinite(number) else self._unscored("failed", 1, f"returned {number}")[0]

    def _unscored(self, kind: str, count: int, why: str) -> list[float | None]:
        self.counters[kind] += count
        self.first_problem = self.first_problem or f"reward {self.name} {why}"
        return [None] * count


def in_daemon_thread(call: Callable[[], Any]) -> asyncio.Future[Any]:
    """The call's result, from a thread that a hanging function can hold for ever without holding the loop or the interpreter's exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, problem: BaseException | None) -> None:
        if done.cancelled():
            return
        if problem is None:
            done.set_result(value)
        else:
            done.set_exception(problem)

    def work() -> None:
        value, problem = None, None
        try:
            value = call()
        except Exception as raised:
            problem = raised
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, daemon=True, name="reward").start()
    return done


def _prompt(row: Row) -> Any:
    """A text, or the messages as dicts."""
    p = row.prompt
    return p.text if p.messages is None else [{"role": m.role, "content": m.content} for m in p.messages]


def load_function(settings: Function, context: Context) -> FunctionReward:
    """`pkg.mod:name` or `file.py:name`. Errors: BadInput naming what is missing."""
    place, _, attribute = settings.path.rpartition(":")
    if not place:
        raise BadInput(f"reward {settings.path!r}", "pkg.mod:name or file.py:name", "rewards")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        function = getattr(module, attribute)
    except (ImportError, OSError, AttributeError) as problem:
        raise BadInput(f"reward {settings.path!r} cannot be loaded ({problem})", "pkg.mod:name or file.py:name", "rewards") from problem
    if isinstance(function, type):
        function = function()
    return FunctionReward(settings.name or attribute, function, settings.timeout_s, context)


def _from_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
