"""Groups in, tensors out: N rows in prompt order, right-padded to T.

Example: groups of 2 and 1 completions with lengths (3, 1) and (2): N = 3, T = 3, group_N = [0, 0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from policyloop.types import Batch, Group


@dataclass(frozen=True, slots=True)
class Tokens:
    """The token ids of a batch's rows, which objectives never see: `group` says which rows share a prompt."""

    group: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]


def to_batch(groups: Sequence[Group]) -> tuple[Batch, list[Tokens]]:
    """Every completion of every group, kept or not, as one row each; log-probs NaN where the engine gave none."""
    rows = [(g, i) for g, group in enumerate(groups) for i in range(len(group.completions))]
    completions = [groups[g].completions[i] for g, i in rows]
    scores = [groups[g].scores[i] for g, i in rows]
    width = max((len(c.token_ids) for c in completions), default=0)
    mask = _padded([c.mask for c in completions], width, 0, torch.int64).bool()
    batch = Batch(
        mask_NT=mask,
        counted_NT=mask.clone(),
        group_N=torch.tensor([g for g, _ in rows], dtype=torch.int64),
        keep_N=torch.tensor([groups[g].keep[i] for g, i in rows], dtype=torch.bool),
        rewards_N=_numbers([s.value for s in scores]),
        metric_N=_numbers([s.metric for s in scores]),
        length_N=torch.tensor([c.length for c in completions], dtype=torch.int64),
        finished_N=torch.tensor([c.finish_reason == "stop" for c in completions], dtype=torch.bool),
        rollout_logprobs_NT=_padded([c.logprobs for c in completions], width, float("nan"), torch.float32),
        step_rewards_NT=_steps([s.info.get("steps") for s in scores], mask),
    )
    tokens = [Tokens(g, groups[g].completions[i].prompt_token_ids, groups[g].completions[i].token_ids) for g, i in rows]
    return batch, tokens


def _numbers(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)


def _steps(rows: Sequence[Sequence[tuple[int, float]] | None], mask_NT: Tensor) -> Tensor | None:
    """(N, T) process rewards at the token where each step ends, NaN elsewhere; None where no completion has any."""
    if all(steps is None for steps in rows):
        return None
    out = torch.full(mask_NT.shape, torch.nan, dtype=torch.float64)
    for n, steps in enumerate(rows):
        for token, reward in steps or ():
            out[n, min(max(0, int(token)), max(0, int(mask_NT[n].sum()) - 1))] = float(reward)
    return out


def _padded(rows: Sequence[Sequence[float]], width: int, fill: float, dtype: torch.dtype) -> Tensor:
    """(N, width): each row left-aligned, the rest `fill`."""
    out = torch.full((len(rows), width), fill, dtype=dtype)
    for n, row in enumerate(rows):
        out[n, : len(row)] = torch.tensor(row, dtype=dtype)
    return out
