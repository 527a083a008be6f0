"""GSM8K: 7,473 training and 1,319 test questions of primary-school mathematics, gold after `####`.

In: `data.path` = a hub id (default openai/gsm8k), a folder with train and test files, or a training file with `data.eval`.
Out: a `Task`; the worked solution without its calculator marks is kept as the demonstration for supervised training.

Example:
    >>> gold_and_solution("She has 2+3=<<2+3=5>>5 eggs.\\n#### 5", "train.jsonl line 1")
    ('5', 'She has 2+3=5 eggs.\\n#### 5')
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from policyloop.config import build
from policyloop.errors import BadInput
from policyloop.tasks import DataSettings
from policyloop.tasks.files import exists, is_folder
from policyloop.tasks.framing import Framing
from policyloop.tasks.grading import Verdict
from policyloop.tasks.items import Item, items_of
from policyloop.tasks.jsonl import JsonlTask, separate
from policyloop.tasks.reading import Record, read_split
from policyloop.types import settings

HUB_ID, HUB_CONFIG = "openai/gsm8k", "main"
COUNTS = {"train": 7473, "test": 1319}
ANSWER_FORMAT = 'Think step by step. End with a line "#### " and the final number.'


@settings
class Options:
    """check_counts: refuse other numbers of rows than 7,473 and 1,319 (false: say so and go on)."""

    check_counts: bool = True


def load(settings: DataSettings, seed: int) -> JsonlTask:
    options = build(Options, settings.options, "data.options")
    train, notes = _items("train", settings, options)
    test, more = _items("test", settings, options)
    train, said = separate(train, test, settings.overlap)
    return JsonlTask(
        "gsm8k",
        Framing.of(settings, ANSWER_FORMAT),
        Verdict("math" if settings.grader == "auto" else settings.grader, bool(settings.correct_needs_stop)),
        (f"{len(train)} training questions, {len(test)} test questions", *notes, *more, *said),
        tuple(train),
        tuple(test),
    )


def _items(split: str, settings: DataSettings, options: Options) -> tuple[list[Item], list[str]]:
    records, where = _records(split, settings)
    items = [
        _item(item) for item in items_of(records, {"prompt": "question", "answer": "answer"} | dict(settings.columns), where)[0]
    ]
    if len(items) == COUNTS[split]:
        return items, []
    found = f"{where} has {len(items):,} {split} rows"
    hint = "".join(f" (that is the number of {other} rows)" for other, n in COUNTS.items() if n == len(items))
    if options.check_counts:
        raise BadInput(found + hint, f"{COUNTS[split]:,}, or data.options.check_counts: false", "data.path or data.eval")
    return items, [f"warning: {found}, GSM8K has {COUNTS[split]:,}"]


def _records(split: str, settings: DataSettings) -> tuple[Sequence[Record], str]:
    source = settings.path or HUB_ID
    if split == "test" and settings.eval is not None:
        return read_split(settings.eval, split), settings.eval
    if exists(source):
        if split == "test" and not is_folder(source):
            raise BadInput(f"data.path is the file {source} and data.eval is missing", "data.eval: the test file", "data.eval")
        return read_split(source, split), source
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) is None:
        raise BadInput(f"data.path {source} does not exist", f"a folder, a file or a hub id such as {HUB_ID}", "data.path")
    from policyloop.tasks.hub import hub_rows

    return hub_rows(source, HUB_CONFIG, split, settings.dataset_cache_dir), source


def _item(item: Item) -> Item:
    gold, solution = gold_and_solution(item.answer or "", item.place)
    return dataclasses.replace(item, answer=gold, demonstration=solution)


def gold_and_solution(answer: str, place: str) -> tuple[str, str]:
    """The gold as written after the last `####`, and the solution without calculator marks `<<2+3=5>>`."""
    _, mark, gold = answer.rpartition("####")
    if not mark or not gold.strip():
        raise BadInput(f"{place}: the answer has no '####' with a number after it", "GSM8K's form, or task: jsonl", place)
    return gold.strip(), re.sub(r"<<[^<>\n]*>>", "", answer).strip()
