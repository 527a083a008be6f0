"""Rows from any accepted file: JSON Lines, JSON, CSV, TSV, Parquet in, one `Record` per row out, faults named with file and line.

Types are never guessed: a JSON number stays the text of the file (`NumberText`) until somebody asks for a number, so that the
answers 1, "007", "1,080" and 1e3 reach the grader as they were written.

Example:
    >>> list(read("a.jsonl"))
    [Record(values={'question': 'What is 2+3?', 'answer': '5'}, place='a.jsonl line 1')]
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, Any

from policyloop.errors import BadInput
from policyloop.tasks import DATA_SUFFIXES
from policyloop.tasks.files import is_folder, list_files, open_bytes

MAX_LINE_BYTES = 64 * 2**20
OnFault = Callable[[BadInput], None]


@dataclass(frozen=True, slots=True)
class Record:
    """One row and where it stands (`train.jsonl line 7`)."""

    values: Mapping[str, Any]
    place: str


class NumberText(str):
    """A JSON number, spelled as in the file."""

    __slots__ = ()


def stop(fault: BadInput) -> None:
    """The default for faulty rows: the first one ends the reading."""
    raise fault


def read_split(uri: str, split: str, on_fault: OnFault = stop) -> list[Record]:
    """All rows of one split: of the file itself, or of the files in the folder that belong to it. None at all is an error."""
    files = split_files(uri, split) if is_folder(uri) else [uri]
    records = [record for file in files for record in read(file, on_fault)]
    if not records:
        raise BadInput(f"{uri} is empty: it has no rows", "at least one row", uri)
    return records


SPLITS = {"train": ("train", "training"), "test": ("test", "eval", "validation", "valid", "val", "dev", "heldout", "held_out")}


def split_files(folder: str, split: str, required: bool = True) -> list[str]:
    """Files of `split` (train, test) in a folder, told by a word in the path: `train.jsonl`, `main/test-00000-of-00001.parquet`.

    The first spelling with files counts, so that `test` wins over `validation`. A folder without such words is all training data.
    """
    files = list_files(folder, DATA_SUFFIXES)
    words = {file: set(re.split(r"[^a-z]+", file[len(folder) :].lower().replace("held_out", "heldout"))) for file in files}
    for spelling in SPLITS[split]:
        if chosen := [file for file in files if spelling in words[file]]:
            return chosen
    if split == "train" and not any(words[f] & set(SPLITS["test"]) for f in files) and files:
        return files
    if required:
        names = ", ".join(f[len(folder) :].lstrip("/") for f in files[:6]) or "no data files"
        raise BadInput(f"{folder} has no {split} files (found {names})", f"{split}.jsonl or another of {_formats()}", folder)
    return []


def read(uri: str, on_fault: OnFault = stop) -> Iterator[Record]:
    """The rows of one file, by its suffix. `on_fault` decides whether a faulty row ends the reading or is left out."""
    name = uri.removesuffix(".gz").lower()
    for suffix, reader in READERS.items():
        if name.endswith(suffix):
            try:
                with open_bytes(uri) as stream:
                    yield from reader(stream, uri, on_fault)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                on_fault(BadInput(f"{uri} cannot be unpacked ({error})", "a whole gzip file", uri))
            return
    raise BadInput(f"{uri} has no known suffix", _formats(), uri)


# --- JSON -------------------------------------------------------------------------------------------------------------------


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; write null")


_DECODER = json.JSONDecoder(
    parse_int=NumberText, parse_float=NumberText, parse_constant=_no_constant, object_pairs_hook=_no_repeats
)


def json_lines(stream: IO[bytes], uri: str, on_fault: OnFault) -> Iterator[Record]:
    """One object per line. Lines end at \\n only: U+2028 and its kin are ordinary characters inside a string."""
    for number, raw in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), 1):
        place = f"{uri} line {number}"
        if len(raw) > MAX_LINE_BYTES:
            on_fault(BadInput(f"{place} is longer than {MAX_LINE_BYTES:,} bytes", "shorter lines", place))
            return
        try:
            # Files joined with `cat` have a byte order mark in the middle; before an object it can mean nothing else.
            text = _decode(raw, place).lstrip("\ufeff").strip(" \t\r\n")
            if text:
                yield Record(_object(text, place, last=not raw.endswith(b"\n")), place)
        except BadInput as fault:
            on_fault(fault)


def _decode(raw: bytes, place: str) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in raw:
        raise BadInput(f"{place} holds NUL bytes: the file is UTF-16 or damaged", "UTF-8 text", place)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if not raw.endswith(b"\n") and error.reason == "unexpected end of data":
            raise _cut_off(place) from None
        column, byte = error.start + 1, raw[error.start]
        raise BadInput(
            f"{place}: byte 0x{byte:02x} at column {column} is not UTF-8", "UTF-8 text (iconv -f latin1 -t utf-8 converts)", place
        ) from None


def _object(text: str, place: str, last: bool) -> dict[str, Any]:
    """One line as an object. `last`: the line has no line end, so an unfinished one was cut off."""
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if last and (error.pos >= len(text) or not text.endswith("}")):
            raise _cut_off(place) from None
        raise BadInput(
            f"{place} is not JSON ({error.msg.removesuffix(' at')} at column {error.colno})", "one JSON object per line", place
        ) from None
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise BadInput(f"{place} is not JSON ({what})", "one JSON object per line", place) from None
    return _checked(value, text, place)


def _cut_off(place: str) -> BadInput:
    return BadInput(
        f"{place}, the last line, is cut off: the file was written or copied only in part", "a whole JSON object per line", place
    )


def _checked(value: Any, text: str, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{place} holds a {kind(value)}", "a JSON object with named columns", place)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"{place} holds half of a character pair (\\ud800 to \\udfff alone)", "whole characters", place
            ) from None
    return value


def _json(stream: IO[bytes], uri: str, on_fault: OnFault) -> Iterator[Record]:
    """A list of objects, an object that holds one such list, one object, or (files are often misnamed) JSON Lines."""
    text = _decode(stream.read(), uri).lstrip("\ufeff")
    if opening := re.match(r"\s*\[", text):
        yield from _elements(text, opening.end(), uri, on_fault)
        return
    try:
        whole = _checked(_DECODER.decode(text.strip()), text, uri)
    except (ValueError, RecursionError):
        stream.seek(0)
        yield from json_lines(stream, uri, on_fault)
        return
    lists = {k: v for k, v in whole.items() if isinstance(v, list) and v and all(isinstance(row, dict) for row in v)}
    if len(lists) == 1 and not lists.keys() & {"messages", "conversations", "prompt"}:
        ((key, rows),) = lists.items()
        yield from (Record(row, f"{uri} {key}[{i}]") for i, row in enumerate(rows))
    else:
        yield Record(whole, f"{uri} line 1")


def _elements(text: str, at: int, uri: str, on_fault: OnFault) -> Iterator[Record]:
    line, counted, space = 1, 0, re.compile(r"[\s]*")
    while True:
        at = space.match(text, at).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, at), at
        place = f"{uri} line {line}"
        if text[at : at + 1] == "]":
            return
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
            what = "the file is cut off there" if cut else getattr(error, "msg", error)
            on_fault(BadInput(f"{place} is not JSON ({what})", "a list of objects", place))
            return
        try:
            yield Record(_checked(value, text[at:end], place), place)
        except BadInput as fault:
            on_fault(fault)
        at = space.match(text, end).end()  # type: ignore[union-attr]
        if text[at : at + 1] not in (",", "]"):
            on_fault(
                BadInput(
                    f"{uri} line {line + text.count(chr(10), counted, at)}: the list is not closed", "a list of objects", uri
                )
            )
            return
        at += text[at] == ","


# --- tables -----------------------------------------------------------------------------------------------------------------


def _csv(stream: IO[bytes], uri: str, on_fault: OnFault) -> Iterator[Record]:
    """A header and rows; every value is text. Separator: the one of comma, semicolon and tab that the header has most of."""
    lines = (_decode(raw, f"{uri} line {n}") for n, raw in enumerate(stream, 1))
    csv.field_size_limit(MAX_LINE_BYTES)
    before = 0
    try:
        first = next(lines, "").lstrip("\ufeff")
        rows = csv.reader(_again(first, lines), delimiter=max(",;\t", key=first.count), strict=True)
        header = next(rows, [])
        if len(set(header)) < len(header):
            raise BadInput(f"{uri} line 1 names a column twice ({', '.join(header)})", "different names", f"{uri} line 1")
        before = rows.line_num
        for row in rows:
            place, before = f"{uri} line {before + 1}", rows.line_num
            if len(row) == len(header):
                yield Record(dict(zip(header, row, strict=True)), place)
            elif row:
                on_fault(BadInput(f"{place} has {len(row)} fields, the header has {len(header)}", "the same number", place))
    except csv.Error as error:
        place = f"{uri} line {before + 1}"
        on_fault(BadInput(f"{place} is not CSV ({error})", "quoted fields that are closed", place))
    except BadInput as fault:
        on_fault(fault)


def _again(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _parquet(stream: IO[bytes], uri: str, on_fault: OnFault) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(stream).iter_batches():
            for values in batch.to_pylist():
                number += 1
                yield Record(values, f"{uri} row {number}")
    except (pa.ArrowException, OSError) as error:
        on_fault(BadInput(f"{uri} cannot be read as Parquet after row {number} ({error})", "a whole Parquet file", uri))


READERS: dict[str, Callable[[IO[bytes], str, OnFault], Iterator[Record]]] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
}


def _formats() -> str:
    return f"{', '.join(READERS)} (also with .gz)"


# --- values -----------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as rewards and `json.dumps` want it: numbers as numbers, where they fit one; dates and decimals as text."""
    if isinstance(value, NumberText):
        return _number(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _number(text: NumberText) -> int | float | str:
    try:
        value = int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:  # more digits than Python reads
        return str(text)
    return value if math.isfinite(value) else str(text)


def literal(value: Any) -> str | None:
    """A scalar as the text of the file; None for missing. Raises ValueError for lists and objects."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    raise ValueError(kind(value))


def kind(value: Any) -> str:
    names = {NumberText: "number", str: "text", list: "list", dict: "object", bool: "true or false", type(None): "null"}
    return names.get(type(value), type(value).__name__)
