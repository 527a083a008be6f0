"""Your own data: questions and answers in JSON Lines, JSON, CSV or Parquet, under any column names; or rows from Python.

In: `data.path` (and `data.eval`, else a share is held out by the hash of the question). Out: a `Task`.

Example:
    >>> task = JsonlTask.from_rows([{"question": "2+3?", "answer": 5}, {"question": "4+4?", "answer": 8}], DataSettings())
    >>> task.notes[0]
    'columns: prompt = question, answer = answer'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.files import is_folder
from policyloop.tasks.framing import Framing
from policyloop.tasks.grading import Verdict, readable
from policyloop.tasks.items import Item, cut, items_of, shuffled
from policyloop.tasks.overlap import exact_overlap, normalise
from policyloop.tasks.reading import Record, read_split, split_files
from policyloop.types import Completion, Prompt

HELD_OUT_SHARE = 0.1
JUDGED = 200  # answers looked at to tell numbers from words


@dataclass(frozen=True)
class JsonlTask:
    """Prompts from rows. Two equal questions stay two prompts; they are counted in `notes`."""

    name: str
    framing: Framing
    verdict: Verdict
    notes: tuple[str, ...]
    train_items: tuple[Item, ...]
    held_out_items: tuple[Item, ...]

    @property
    def correct_needs_stop(self) -> bool:
        return self.verdict.needs_stop

    def train(self) -> list[Prompt]:
        return [item.prompt(self.name, self.framing) for item in self.train_items]

    def held_out(self, seed: int = 0) -> list[Prompt]:
        """All held-out rows, in an order drawn from the seed."""
        return shuffled([item.prompt(self.name, self.framing) for item in self.held_out_items], seed, lambda p: p.id)

    def grade(self, prompt: Prompt, completion: Completion) -> bool | None:
        return self.verdict(prompt, completion)

    @staticmethod
    def from_rows(
        rows: Iterable[Mapping[str, Any]], settings: DataSettings, held_out: Iterable[Mapping[str, Any]] | None = None
    ) -> JsonlTask:
        """The task of rows that are already in memory (anything that iterates over mappings)."""
        train = [Record(row, f"row {i}") for i, row in enumerate(rows)]
        test = None if held_out is None else [Record(row, f"held-out row {i}") for i, row in enumerate(held_out)]
        return JsonlTask.from_records(train, test, settings, "the rows")

    @staticmethod
    def from_records(
        records: Sequence[Record], held_out: Sequence[Record] | None, settings: DataSettings, where: str, name: str = "jsonl"
    ) -> JsonlTask:
        if not records:
            raise BadInput(f"{where}: there are no rows", "at least two", "data.path")
        items, columns = items_of(records, settings.columns, where)
        notes = [columns.said()]
        if held_out is None:
            train, test = cut(items, HELD_OUT_SHARE if settings.held_out_share is None else settings.held_out_share)
            notes.append(f"{len(train)} training rows, {len(test)} held out by the hash of the question")
        else:
            test, _ = items_of(held_out, settings.columns, "the held-out rows")
            train, said = separate(items, test, settings.overlap)
            notes += [f"{len(train)} training rows, {len(test)} held-out rows", *said]
        grader, said = choose_grader(settings.grader, [*train, *test])
        notes += [*said, *_counted(train, "training"), *_counted(test, "held-out")]
        verdict = Verdict(grader, bool(settings.correct_needs_stop))
        return JsonlTask(name, Framing.of(settings), verdict, tuple(notes), tuple(train), tuple(test))


def load(settings: DataSettings, seed: int) -> JsonlTask:
    """Rows from `data.path`; held-out rows from `data.eval`, from the folder's own test files, or cut off."""
    if settings.options:
        raise BadInput(f"data.options = {dict(settings.options)}", "no options for task jsonl", "data.options")
    train, held_out, where = splits(settings, "rows")
    return JsonlTask.from_records(train, held_out, settings, where)


def splits(settings: DataSettings, rows: str) -> tuple[list[Record], list[Record] | None, str]:
    """(training records, held-out records or None where a share is to be cut off, the path). Errors: BadInput without a path."""
    if settings.path is None:
        raise BadInput("data.path is missing", f"a file or folder of {rows}", "data.path")
    held_out = None
    if settings.eval is not None:
        held_out = read_split(settings.eval, "test")
    elif is_folder(settings.path) and settings.held_out_share is None and split_files(settings.path, "test", required=False):
        held_out = read_split(settings.path, "test")
    return read_split(settings.path, "train"), held_out, settings.path


def separate(
    train: Sequence[Item], test: Sequence[Item], action: Literal["refuse", "drop", "warn"]
) -> tuple[list[Item], list[str]]:
    """Training rows that are no test rows. `refuse` names the first pair; `drop` and `warn` say how many there were."""
    pairs = exact_overlap([i.spoken for i in train], [i.spoken for i in test])
    if not pairs:
        return list(train), []
    first = f"{train[pairs[0][0]].place} = {test[pairs[0][1]].place}"
    found = f"{len(pairs)} of {len(test)} held-out questions are also in the training rows ({first})"
    if action == "refuse":
        raise BadInput(found, "separate rows, or data.overlap: drop (the training rows)", "data.overlap")
    if action == "warn":
        return list(train), [f"warning: {found}"]
    known = {normalise(i.spoken) for i in test}
    kept = [i for i in train if normalise(i.spoken) not in known]
    if not kept:
        raise BadInput(f"{found}; dropping them leaves no training rows", "separate rows", "data.path")
    return kept, [f"{found}; {len(train) - len(kept)} training rows dropped"]


def choose_grader(wanted: Literal["auto", "math", "text"], items: Sequence[Item]) -> tuple[Literal["math", "text"], list[str]]:
    """`auto`: math if at least half of the answers (a sample of them) can be read as numbers, else words."""
    golds = [i.answer for i in items if i.answer is not None]
    if wanted != "auto":
        return wanted, []
    if not golds:
        return "math", []
    good = readable(golds[:: max(1, len(golds) // JUDGED)])
    found = f"{good.count(False)} of {len(good)} answers looked at are no values (numbers, expressions)"
    if sum(good) < len(good) / 2:
        return "text", [f"{found}: all are compared as words (data.grader: math compares values)"]
    return "math", [] if all(good) else [f"{found} and are never graded"]


def _counted(items: Sequence[Item], kind: str) -> list[str]:
    """What a reader of the notes should know about these rows."""
    asked = Counter(normalise(i.spoken) for i in items)
    repeated = sum(n - 1 for n in asked.values())
    silent = sum(i.answer is None for i in items)
    notes = [f"{repeated} {kind} rows repeat an earlier question; each stays a prompt of its own"] if repeated else []
    return notes + ([f"{silent} {kind} rows have no answer and are never graded"] if silent else [])
