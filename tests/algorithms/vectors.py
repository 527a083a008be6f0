"""Reads tests/vectors: numbers that other people's reference code produced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).parent.parent / "vectors"


def cases(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / f"{name}.json").read_text())["cases"]


def case(name: str, id: str) -> dict[str, Any]:
    return next(c for c in cases(name) if c["id"] == id)


def tensor(x: Any) -> Tensor:
    return torch.tensor(x["data"], dtype=torch.float64)


def inputs(c: dict[str, Any]) -> dict[str, Tensor]:
    return {k: tensor(v) for k, v in c["inputs"].items() if isinstance(v, dict)}


def expected(c: dict[str, Any], key: str) -> Tensor:
    value = c["expected"][key]
    return tensor(value) if isinstance(value, dict) else torch.tensor(value, dtype=torch.float64)


def close(c: dict[str, Any], got: Tensor, key: str, mask: Tensor | None = None) -> None:
    want = expected(c, key)
    if mask is not None:
        got, want = got[mask], want[mask]
    torch.testing.assert_close(got.double(), want, **c["tolerance"])
