"""A store with a journal in it, written through the real shelf."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from policyloop.journal import Feedback, Record
from policyloop.journal.segments import encode
from policyloop.journal.shipping import Shelf

NOW = time.time()


class World:
    """`ask` and `say` write down, `store` is the URI."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.n, self.segments = folder, str(folder / "store"), 0, 0
        self.rows: list[tuple[str, dict[str, Any]]] = []

    def ask(self, prompt: Any, text: str, key: str = "team", tokens: int | None = None, **more: Any) -> str:
        self.n += 1
        ids = list(range(tokens if tokens is not None else 4))
        row = {
            **{
                "request_id": f"r{self.n}",
                "at": NOW - 1000 + self.n / 100,
                "key": key,
                "model": "m",
                "version": "m@1",
                "prompt": prompt,
            },
            **{
                "text": text,
                "token_ids": ids,
                "prompt_token_ids": [1, 2],
                "logprobs": [-0.5] * len(ids),
                "finish_reason": "stop",
            },
            **more,
        }
        self.rows.append(("records", Record.of(row).row()))
        return f"r{self.n}"

    def say(
        self, request_id: str, kind: str, value: Any, key: str = "team", user: str = "", label: bool = False, after: float = 0.0
    ) -> None:
        self.n += 1
        row = Feedback(
            request_id=request_id, at=NOW - 900 + self.n / 100 + after, key=key, kind=kind, value=value, user=user, label=label
        ).row()
        self.rows.append(("feedback", row))

    def ship(self) -> None:
        self.segments += 1
        path = self.folder / f"segment-{self.segments}"
        path.write_bytes(b"".join(encode(kind, row) for kind, row in self.rows))
        Shelf.at(self.store).ship(path, f"w-{self.segments}")
        self.rows = []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
