"""Are test questions inside the training data? Exact copies after normalisation, and near copies by shared character 5-grams.

In: two lists of texts. Out: an `Overlap` with pairs of row numbers. Near copies are looked for with MinHash bands, so that the
time grows with the rows and not with their product; what the bands find is then measured exactly (Jaccard of the 5-gram sets).

Example:
    >>> find_overlap(["How many eggs are left?"], ["how many  EGGS are left?"]).exact
    ((0, 0),)
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHINGLE, BANDS, ROWS, PER_BUCKET = 5, 25, 5, 20


@dataclass(frozen=True, slots=True)
class Overlap:
    """exact: (train row, test row), every test row once. near: (train row, test row, similarity), a test row's closest one."""

    exact: tuple[tuple[int, int], ...] = ()
    near: tuple[tuple[int, int, float], ...] = ()


def normalise(text: str) -> str:
    """Case, width and all blanks taken away; signs stay, because `3+4` and `3-4` are different questions."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def exact_overlap(train: Sequence[str], test: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(train row, test row) for every test text that is also a training text."""
    first: dict[str, int] = {}
    for i, text in enumerate(train):
        first.setdefault(normalise(text), i)
    return tuple((first[key], j) for j, text in enumerate(test) if (key := normalise(text)) in first)


def find_overlap(train: Sequence[str], test: Sequence[str], threshold: float = 0.7) -> Overlap:
    """Exact and near copies. `threshold`: share of common 5-grams of near texts (the bands find 99 % of those at 0.7)."""
    exact = exact_overlap(train, test)
    done = {j for _, j in exact}
    rest = [j for j in range(len(test)) if j not in done]
    texts = [normalise(t) for t in train] + [normalise(test[j]) for j in rest]
    shingles = [_shingles(t) for t in texts]
    signatures = _signatures(shingles)
    near = []
    buckets = _buckets(signatures[: len(train)])
    for k, j in enumerate(rest, len(train)):
        rows = {i for band, value in enumerate(_bands(signatures[k])) for i in buckets[band].get(value, ())}
        best = max(((_jaccard(shingles[i], shingles[k]), -i) for i in rows), default=(0.0, 0))
        if best[0] >= threshold:
            near.append((-best[1], j, best[0]))
    return Overlap(exact, tuple(near))


def _shingles(text: str) -> NDArray[np.uint64]:
    """The set of hashed 5-grams of a text, sorted. Texts shorter than that are one gram."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    width = max(1, min(SHINGLE, len(codes)))
    value = np.zeros(max(len(codes) - width + 1, 1), dtype=np.uint64)
    for k in range(width if len(codes) else 0):
        value = (value ^ codes[k : len(codes) - width + 1 + k]) * np.uint64(0x100000001B3)
        value ^= value >> np.uint64(29)
    return np.unique(value)


def _signatures(shingles: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """MinHash: per text and hash function the smallest value among its grams. Odd multipliers keep 64-bit hashing a bijection."""
    if not shingles:
        return np.zeros((0, BANDS * ROWS), dtype=np.uint64)
    rng = np.random.default_rng(20240229)
    a = rng.integers(0, 2**63, BANDS * ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    b = rng.integers(0, 2**63, BANDS * ROWS, dtype=np.uint64)
    flat = np.concatenate(shingles)
    starts = np.cumsum([0, *(len(s) for s in shingles[:-1])])
    made = np.empty((len(shingles), BANDS * ROWS), dtype=np.uint64)
    for k in range(BANDS * ROWS):
        mixed = (flat ^ b[k]) * a[k]
        made[:, k] = np.minimum.reduceat(mixed ^ (mixed >> np.uint64(32)), starts)
    return made


def _bands(signature: NDArray[np.uint64]) -> list[bytes]:
    return [signature[b * ROWS : (b + 1) * ROWS].tobytes() for b in range(BANDS)]


def _buckets(signatures: NDArray[np.uint64]) -> list[dict[bytes, list[int]]]:
    """Per band: value -> rows. A bucket keeps its first few rows: a template with a thousand copies is found by any of them."""
    buckets: list[dict[bytes, list[int]]] = [defaultdict(list) for _ in range(BANDS)]
    for i, signature in enumerate(signatures):
        for band, value in enumerate(_bands(signature)):
            if len(rows := buckets[band][value]) < PER_BUCKET:
                rows.append(i)
    return buckets


def _jaccard(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> float:
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)
