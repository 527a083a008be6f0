"""A user's reward function: sync or async, whatever arguments it declares; late or failing calls leave rows unscored and are counted.

It gets, by name, what it declares of: prompts, completions (texts), completion_ids, answer/target, and any column of the data; with
**kwargs all of it. One call for all rows, lists aligned by row, one number per row back: None = does not apply, NaN or infinity = unscored.
A function that declares `completion` (or `prompt`) instead is called once per row, with that row's values, and returns one number.

Example:
    def brevity(completions, answer, **rest):
        return [1.0 / (1 + len(text)) for text in completions]
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from policyloop.errors import BadInput
from policyloop.rewards import Context, Row
from policyloop.rewards.isolated import Isolated
from policyloop.rewards.running import in_thread

HANGING = 4  # threads of late calls that may still be busy before no further call is started
UNSCORED = object()
log = logging.getLogger(__name__)


def asked(row: Row) -> Any:
    """The prompt: its text, or its messages as dicts."""
    p = row.prompt
    return p.text if p.messages is None else [{"role": m.role, "content": m.content} for m in p.messages]


def said(row: Row) -> str:
    return row.completion.text


BUILT: dict[str, Callable[[Row], Any]] = {
    "prompts": asked,
    "completions": said,
    "prompt": asked,
    "completion": said,
    "completion_ids": lambda r: list(r.completion.token_ids),
    "answer": lambda r: r.prompt.meta.get("answer", r.prompt.target),
    "target": lambda r: r.prompt.target,
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a function declares, checked against what there is; `per_row`: values of one row instead of lists."""

    names: tuple[str, ...]
    per_row: bool

    @staticmethod
    def declared(name: str, function: Callable[..., Any], columns: frozenset[str]) -> Arguments:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as problem:
            raise BadInput(f"reward {name} cannot be called ({problem})", "a function", "rewards") from problem
        by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        named = {p.name for p in by_name}
        per_row = bool(named & {"completion", "prompt"}) and not named & {"completions", "prompts"}
        own = {"prompt", "completion"} if per_row else {"prompts", "completions"}
        known = {*own, "completion_ids"} | (columns - {"prompt", "prompts", "completion", "completions"})
        for p in parameters:
            if p.kind is p.POSITIONAL_ONLY or (p in by_name and p.default is p.empty and p.name not in known):
                there = f"{', '.join(sorted(columns)) or 'none'} (and {', '.join(sorted(known - columns))} of the run)"
                raise BadInput(
                    f"reward {name} needs column {p.name}",
                    f"an argument that the data supply; columns: {there}",
                    "the function or data",
                )
        everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return Arguments(tuple(sorted(known if everything else known & named)), per_row)

    def of(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        return {n: [BUILT[n](r) if n in BUILT else r.prompt.meta.get(n) for r in rows] for n in self.names}

    def of_one(self, row: Row) -> dict[str, Any]:
        return {n: values[0] for n, values in self.of([row]).items()}


class FunctionReward:
    """One function. `counters`: rows of the last call on which it failed or was late; `first_problem`: in words, also logged once."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        context: Context,
        timeout_s: float = 30.0,
        concurrency: int = 16,
        isolated: Isolated | None = None,
        fallback: float | None = None,
    ) -> None:
        self.name, self.function, self.timeout_s, self.isolated = name, function, timeout_s, isolated
        self.fallback = fallback  # what rows get on which it failed or was late; None = unscored
        self.arguments = Arguments.declared(name, function, context.columns)
        self.concurrency = concurrency if self.arguments.per_row else 1
        self.counters = {"failed": 0, "late": 0}
        self.first_problem: str | None = None
        self._busy: set[object] = set()  # one mark per thread that has not come back

    async def __call__(self, rows: Sequence[Row]) -> list[float | None]:
        found = await self._scored(rows)
        return found if self.fallback is None else [self.fallback if v is None else v for v in found]

    async def _scored(self, rows: Sequence[Row]) -> list[float | None]:
        self.counters = dict.fromkeys(self.counters, 0)
        if not self.arguments.per_row:
            returned = await self._limited(self.arguments.of(rows), len(rows))
            return [None] * len(rows) if returned is UNSCORED else [self._number(v) for v in self._list(returned, len(rows))]
        slots = asyncio.Semaphore(self.concurrency)

        async def one(row: Row) -> float | None:
            async with slots:
                returned = await self._limited(self.arguments.of_one(row), 1)
            return None if returned is UNSCORED else self._number(returned)

        return list(await asyncio.gather(*(one(row) for row in rows)))

    async def _limited(self, arguments: Mapping[str, Any], rows: int) -> Any:
        """What the function returns, or UNSCORED when it raised or took too long."""
        if len(self._busy) >= self.concurrency + HANGING:
            return self._unscored(
                "late", rows, f"still hangs in {len(self._busy)} earlier calls (isolated: true ends such calls)"
            )
        try:
            if self.isolated is not None:  # starting its process is not the function's time; it keeps the limit itself
                return await self._in_thread(self.isolated, arguments)
            async with asyncio.timeout(self.timeout_s):
                return await self._call(arguments)
        except TimeoutError:
            return self._unscored("late", rows, f"took longer than {self.timeout_s:g} s")
        except Exception as problem:  # the user's code may raise anything; it is counted and shown, never swallowed
            return self._unscored("failed", rows, f"raised {type(problem).__name__}: {problem}")

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        f = self.function
        if inspect.iscoroutinefunction(f) or inspect.iscoroutinefunction(getattr(f, "__call__", None)):  # noqa: B004
            return await f(**arguments)
        value = await self._in_thread(f, arguments)
        return await value if inspect.isawaitable(value) else value

    async def _in_thread(self, call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        mark = object()

        def marked() -> Any:
            try:
                return call(**arguments)
            finally:
                self._busy.discard(mark)

        self._busy.add(mark)
        return await in_thread(marked)

    def _list(self, returned: Any, expected: int) -> list[Any]:
        """One value per row, never broadcast. Errors: BadInput with the function's name, what it returned and what was expected."""
        allowed, where = f"a list of {expected} numbers, one per completion", "the reward function"
        try:
            values = None if isinstance(returned, str | bytes | Mapping | set) else list(returned)
        except TypeError:
            values = None
        if values is None:
            raise BadInput(f"reward {self.name} returned {returned!r:.80} for {expected} completions", allowed, where)
        if len(values) != expected:
            raise BadInput(f"reward {self.name} returned {len(values)} values for {expected} completions", allowed, where)
        return values

    def _number(self, value: Any) -> float | None:
        """None does not apply (NaN); what is no finite number is a fault."""
        if value is None:
            return math.nan
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
        self._unscored("failed", 1, f"returned {value!r:.80}, which is no finite number")
        return None

    def _unscored(self, kind: str, rows: int, why: str) -> object:
        self.counters[kind] += rows
        if self.first_problem is None:
            self.first_problem = f"reward {self.name} {why}"
            fate = "unscored" if self.fallback is None else f"given {self.fallback:g}"
            log.warning("%s; such completions are %s and counted", self.first_problem, fate)
        return UNSCORED


def load_function(path: str) -> Callable[..., Any]:
    """The callable at `pkg.mod:name` or `file.py:name` (a class is called for its instance). Errors: BadInput naming what is missing."""
    place, _, attribute = path.rpartition(":")
    if not place or not attribute:
        raise BadInput(f"reward {path!r}", "pkg.mod:name or file.py:name", "rewards")
    try:
        function = getattr(_from_file(Path(place).expanduser()) if place.endswith(".py") else _module(place), attribute)
        function = function() if isinstance(function, type) else function
    except Exception as problem:  # importing runs the user's code, which may raise anything
        why = f"{type(problem).__name__}: {problem}"
        raise BadInput(f"reward {path!r} cannot be loaded ({why})", "pkg.mod:name or file.py:name", "rewards") from problem
    if not callable(function):
        raise BadInput(f"reward {path!r} is {function!r:.80}", "a function", "rewards")
    return function


def _module(name: str) -> ModuleType:
    """Like `python -m`: what lies in the working folder can be imported."""
    _reachable(Path.cwd())
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """Under a name of its own, so that `math.py` hides nothing; modules beside it can be imported."""
    _reachable(path.resolve().parent)
    name = f"policyloop_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look modules up by name
    spec.loader.exec_module(module)
    return module


def _reachable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
