"""policyloop's own JSON Lines: one row per item, columns `prompt` and `answer`, everything else under its own name.

What is written reads back as the same items, or nothing is written.

Example:
    >>> b"".join(lines([Item("2+3?", "5", "a.csv line 2", {"level": 1})]))
    b'{"prompt": "2+3?", "answer": "5", "level": 1}\\n'
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from policyloop.errors import BadInput
from policyloop.tasks.files import create_bytes
from policyloop.tasks.items import Item, items_of
from policyloop.tasks.reading import json_lines, stop

OWN = ("prompt", "answer", "system", "demonstration")
# Valid inside JSON strings, but other people's tools end a line there.
ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "\u2028\u2029\u0085"}


def write_items(items: Sequence[Item], uri: str, force: bool = False) -> None:
    """The items as a file that appears whole, after its bytes were read back and compared."""
    if not uri.endswith((".jsonl", ".ndjson")):
        raise BadInput(f"{uri} is no name for JSON Lines", "a name that ends in .jsonl", uri)
    written = b"".join(lines(items))
    back, _ = items_of(list(json_lines(io.BytesIO(written), uri, stop)), {}, uri)
    for before, after in zip(items, back, strict=True):
        if dataclasses.replace(before, place="") != dataclasses.replace(after, place=""):
            raise BadInput(
                f"{before.place} would not read back as it is", "columns that have no other role's name", "data.columns"
            )
    with create_bytes(uri, force) as stream:
        stream.write(written)


def lines(items: Sequence[Item]) -> Iterator[bytes]:
    """One JSON object per item; the answer is always text, so that no reader can re-type it."""
    for item in items:
        if taken := sorted(set(OWN) & item.meta.keys()):
            raise BadInput(f"{item.place}: the column {taken[0]} would stand twice", "another name for it", "the data")
        yield (json.dumps(_row(item), ensure_ascii=False, allow_nan=False).translate(ESCAPED) + "\n").encode()


def _row(item: Item) -> dict[str, Any]:
    question = item.question if isinstance(item.question, str) else [dataclasses.asdict(m) for m in item.question]
    own = {"system": item.system, "demonstration": item.demonstration}
    return {"prompt": question, "answer": item.answer, **{k: v for k, v in own.items() if v is not None}, **item.meta}
