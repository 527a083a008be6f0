"""Stateless random numbers: u = hash(seed, uid, sample, position) in [0, 1). No generator is saved or shared (DESIGN §9).

Example:
    >>> uniforms(row_keys(0, "q/0/0", [0, 1]), [0, 0])    # one number per row: samples 0 and 1 of one prompt, position 0
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: Keys) -> Keys:
    """splitmix64's finaliser: a bijection in which every input bit reaches every output bit."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_keys(seed: int, uid: str, samples: Sequence[int]) -> Keys:
    """One 64-bit key per sample of a prompt."""
    data = hashlib.blake2b(f"{seed}/{uid}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    base = np.uint64(int.from_bytes(data, "little"))
    with np.errstate(over="ignore"):
        return _mix(base + _GOLDEN * (np.asarray(samples, dtype=np.uint64) + np.uint64(1)))


def uniforms(keys: Keys, positions: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """A float64 in [0, 1) per row: the top 53 bits of the mixed key and position."""
    with np.errstate(over="ignore"):
        mixed = _mix(keys + _GOLDEN * (np.asarray(positions, dtype=np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
