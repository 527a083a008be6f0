"""Pairs from verified rollouts: what a run sampled, right against wrong answers of the same prompt.

In: a run folder (its `samples/`), or a file of such rows (JSON Lines or Parquet): `prompt` or `messages`, and `completions` with `text`,
`metric`, `reward`, `finish_reason`. Out: (prompt, chosen, rejected) rows that the `preference` task reads.

Example: a prompt with answers right, wrong, wrong and per_prompt 2 -> (right, first wrong), (right, second wrong).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from policyloop.errors import BadInput
from policyloop.tasks.files import create_bytes
from policyloop.tasks.preference import PreferenceTask
from policyloop.tasks.reading import Record, read
from policyloop.tasks.writing import ESCAPED


def write_pairs(source: str, uri: str, per_prompt: int = 1, force: bool = False) -> tuple[int, int]:
    """(pairs, prompts with samples) of `source` into the JSON Lines file `uri`, which reads back or is not written.

    Errors: BadInput for a source without samples, rows without completions, or samples that hold no right answer beside a wrong one.
    """
    from policyloop.tasks import DataSettings

    if not uri.endswith((".jsonl", ".ndjson")):
        raise BadInput(f"{uri} is no name for JSON Lines", "a name that ends in .jsonl", uri)
    records = list(samples_of(source))
    rows = [row for record in records for row in islice(pairs_of_group(record), per_prompt)]
    rows = list({(json.dumps(r["prompt"]), r["chosen"], r["rejected"]): r for r in rows}.values())
    if not rows:
        allowed = "samples with a right and a wrong answer to the same prompt (rollout.samples: 1 keeps every step)"
        raise BadInput(f"{source}: none of {len(records)} sampled prompts has both", allowed, source)
    PreferenceTask.from_rows(rows, DataSettings(task="preference", held_out_share=0.0))
    with create_bytes(uri, force) as stream:
        for row in rows:
            stream.write((json.dumps(row, ensure_ascii=False, allow_nan=False).translate(ESCAPED) + "\n").encode())
    return len(rows), len(records)


def samples_of(source: str) -> Iterator[Record]:
    """Sampled groups of a run (oldest step first) or of one file."""
    folder = Path(source)
    if not folder.is_dir():
        yield from read(source)
        return
    files = sorted((folder / "samples").glob("*.jsonl"))
    if not files:
        raise BadInput(
            f"{source} has no samples", "a run folder with samples/ (rollout.samples: 1), or a file of such rows", source
        )
    for file in files:
        yield from read(str(file))


def pairs_of_group(record: Record) -> Iterator[dict[str, Any]]:
    """Every right answer with every wrong one, least used first, so that the first n pairs show as many answers as possible.

    Right and wrong are the raw outcome (`metric`), never the shaped reward. Cut-off answers are no good examples: they are never chosen.
    """
    completions = record.values.get("completions")
    if not isinstance(completions, list) or not all(isinstance(c, Mapping) and "text" in c for c in completions):
        raise BadInput(f"{record.place} has no sampled completions", "rows of a run's samples/", record.place)
    known = [c for c in completions if number(c.get("metric")) is not None]
    right = distinct(c for c in known if number(c["metric"]) > 0 and c.get("finish_reason", "stop") == "stop")  # type: ignore[operator]
    wrong = distinct(c for c in known if number(c["metric"]) <= 0 and c["text"].strip())  # type: ignore[operator]
    prompt = record.values.get("messages") or record.values.get("prompt")
    for shift in range(len(wrong)):
        for i, chosen in enumerate(right):
            rejected = wrong[(i + shift) % len(wrong)]
            yield {
                "prompt": prompt,
                "chosen": chosen["text"],
                "rejected": rejected["text"],
                "score_chosen": number(chosen.get("reward", chosen["metric"])),
                "score_rejected": number(rejected.get("reward", rejected["metric"])),
            }


def distinct(completions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One of equal texts, the first."""
    found: dict[str, Mapping[str, Any]] = {}
    for completion in completions:
        found.setdefault(completion["text"].strip(), completion)
    return [c for text, c in found.items() if text]


def number(value: Any) -> float | None:
    return None if value is None else float(value)
