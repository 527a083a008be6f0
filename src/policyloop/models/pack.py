"""Rows to model input: prompts once per group, then the completions that need a forward, all in one row of L positions.

Example: two completions [7, 8] and [9] of prompt [1, 2, 3] -> token_ids_L [1 2 3 7 8 9], positions [0 1 2 3 4 3],
row_NT [[2, 3], [2, -1]] (token 7 is predicted at position 2, token 8 at 3), target_NT [[7, 8], [9, 0]].
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from policyloop.types import Packed, Segment

Row = tuple[Hashable, Sequence[int], Sequence[int]]  # group, prompt ids, completion ids


def pack(rows: Sequence[Row], needed_NT: Tensor) -> Packed:
    """`rows` in batch order; rows of one group must be neighbours to share their prompt (a split group repeats it).

    needed_NT (N, T) bool: where log-probs are asked for; T must hold the longest completion.
    """
    ids: list[int] = []
    positions: list[int] = []
    layout: list[Segment] = []
    row_NT = torch.full(needed_NT.shape, -1, dtype=torch.int64)
    target_NT = torch.zeros(needed_NT.shape, dtype=torch.int64)
    n = 0
    while n < len(rows):
        group, prompt, _ = rows[n]
        end = n
        while end < len(rows) and rows[end][0] == group and tuple(rows[end][1]) == tuple(prompt):
            end += 1
        start = len(ids)
        ids += prompt
        positions += range(len(prompt))
        for i in range(n, end):
            completion = rows[i][2]
            first, length = len(ids), len(completion)
            if length:
                row_NT[i, 0] = start + len(prompt) - 1
                row_NT[i, 1:length] = torch.arange(first, first + length - 1)
                target_NT[i, :length] = torch.tensor(completion)
            ids += completion
            positions += range(len(prompt), len(prompt) + length)
        layout.append(Segment(start, len(prompt), tuple(len(rows[i][2]) for i in range(n, end))))
        n = end
    return Packed(
        token_ids_L=torch.tensor(ids, dtype=torch.int64),
        position_ids_L=torch.tensor(positions, dtype=torch.int64),
        layout=tuple(layout),
        row_NT=row_NT,
        target_NT=target_NT,
        needed_NT=needed_NT & (row_NT >= 0),
    )


def split(rows: Sequence[Row], budget: int, whole_groups: bool = False) -> list[list[int]]:
    """Micro-batches of row indices, in order, each at most `budget` packed tokens (one row, or a whole group, may exceed it)."""
    units = [[n] for n in range(len(rows))]
    if whole_groups:
        units = [list(g) for _, g in groupby(range(len(rows)), key=lambda n: rows[n][0])]
    parts: list[list[int]] = []
    used, last = 0, None
    for unit in units:
        group, prompt, _ = rows[unit[0]]
        own = sum(len(rows[n][2]) for n in unit)
        cost = own if parts and group == last else own + len(prompt)
        if not parts or used + cost > budget:
            parts.append([])
            used, cost = 0, own + len(prompt)
        parts[-1] += unit
        used, last = used + cost, group
    return parts
