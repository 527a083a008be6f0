"""Rows of a data set on the Hugging Face hub, through `datasets` (which honours HF_ENDPOINT, proxies and offline mode).

Example:
    >>> hub_rows("openai/gsm8k", "main", "test", None)[0].place
    'openai/gsm8k test row 1'
"""

from __future__ import annotations

from policyloop.errors import NotFound
from policyloop.tasks.reading import Record


def hub_rows(hub_id: str, config: str, split: str, cache_dir: str | None) -> list[Record]:
    """All rows of one split, from the cache or the hub. Offline, the error says what is missing and what to do instead."""
    from datasets import load_dataset

    try:
        rows = load_dataset(hub_id, config, split=split, cache_dir=cache_dir)
    except Exception as error:  # the library raises its own, the hub's, requests' and OS errors for the same cause
        raise NotFound(
            f"the data set {hub_id} ({config}, {split}) is not in the cache and the hub did not give it ({_first_line(error)})",
            "a connection to the hub (HF_ENDPOINT names a mirror), or data.path with a folder of train.jsonl and test.jsonl",
            "data.path",
        ) from None
    return [Record(dict(row), f"{hub_id} {split} row {i}") for i, row in enumerate(rows, 1)]


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
