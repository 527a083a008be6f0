"""One token per row from logits: temperature, top-k, top-p, min-p, then a two-level inverse CDF.

In: logits (R, V), u (R,) float64 in [0, 1). Out: token ids (R,) and their log-softmax(logits / temperature) over the full vocabulary,
before any truncation. Block sums first, then inside one block: the index of the float64 CDF, where a float32 cumulative sum over the
vocabulary gives thousands of words no width at all, and several times faster.

Order and ties: top-k, then top-p on the mass that is left, then min-p against the likeliest word; words as likely as the last one that
stays all stay, so the vocabulary's order never decides.

Example: probabilities [0.5, 0.3, 0.2], u = 0.6 -> token 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from policyloop.errors import BadInput
from policyloop.types import SamplingParams

BLOCK = 256
AT_ONCE = 1 << 19  # numbers per pass: what lies in between stays in the cache (five times faster at a vocabulary of 152,000)


def check(p: SamplingParams) -> None:
    """Refuse what has no meaning, by name."""
    rules = (
        ("max_new_tokens", p.max_new_tokens, p.max_new_tokens >= 1, "1 or more"),
        ("n", p.n, p.n >= 1, "1 or more"),
        ("temperature", p.temperature, 0 <= p.temperature < math.inf, "0 (greedy) or more"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "above 0, up to 1 (off)"),
        ("top_k", p.top_k, p.top_k >= 0, "0 (off) or more"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "0 (off) to 1"),
        ("stop", p.stop, all(p.stop), "strings with at least one character"),
    )
    for name, given, fine, allowed in rules:
        if not fine:
            raise BadInput(f"{name} {given!r}", allowed, name)


@dataclass(frozen=True, slots=True)
class Truncation:
    """Per-row settings as (R, 1) tensors."""

    temperature: Tensor
    greedy: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @staticmethod
    def of(params: Sequence[SamplingParams]) -> Truncation:
        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype)[:, None]

        return Truncation(
            column([p.temperature if p.temperature > 0 else 1.0 for p in params], torch.float32),
            column([p.temperature <= 0 for p in params], torch.bool),
            column([p.top_k for p in params], torch.int64),
            column([p.top_p for p in params], torch.float64),
            column([p.min_p for p in params], torch.float32),
        )

    def rows(self, part: slice) -> Truncation:
        return Truncation(*(getattr(self, f.name)[part] for f in fields(self)))


def sample(logits_RV: Tensor, u_R: Tensor, how: Truncation) -> tuple[Tensor, Tensor]:
    """Token ids and their untruncated log-probs (NaN where a row's logits are not finite)."""
    size = max(1, AT_ONCE // logits_RV.shape[1])
    parts = [slice(start, start + size) for start in range(0, len(logits_RV), size)]
    drawn = [_sample(logits_RV[part].float(), u_R[part], how.rows(part)) for part in parts]
    return torch.cat([token for token, _ in drawn]), torch.cat([logprob for _, logprob in drawn])


def _sample(z: Tensor, u_R: Tensor, how: Truncation) -> tuple[Tensor, Tensor]:
    if bool((how.temperature != 1).any()):
        z = z / how.temperature
    top = z.amax(-1, keepdim=True)
    e = (z - top).exp_()  # probabilities up to a factor; the likeliest word has 1
    sums = block_sums(e)
    total = sums.sum(-1, keepdim=True)
    if not bool((total < math.inf).all()):  # any word will do: its log-prob is not a number
        e, sums = torch.where(total < math.inf, e, 1.0), torch.where(total < math.inf, sums, 1.0)
        total = torch.where(total < math.inf, total, math.nan)
    if bool(how.greedy.all()):
        token = z.argmax(-1)
    else:
        kept = truncate(e, how)
        token = inverse_cdf(kept, u_R, sums if kept is e else None)
        if bool(how.greedy.any()):
            token = torch.where(how.greedy[:, 0], z.argmax(-1), token)
    logprob = (z.gather(1, token[:, None]) - top).double() - total.log()
    return token, logprob[:, 0].float()


def truncate(e_RV: Tensor, how: Truncation) -> Tensor:
    """Unnormalised probabilities with the words that top-k, top-p and min-p leave out set to 0; the same object if nothing is cut."""
    if bool((how.top_k > 0).any()):
        k = int(how.top_k.max().clamp_max(e_RV.shape[1]))
        last = (how.top_k.clamp(1, k) - 1).clamp_max(k - 1)
        edge = e_RV.topk(k, -1).values.gather(1, last)
        e_RV = torch.where(e_RV >= torch.where(how.top_k > 0, edge, 0.0), e_RV, 0.0)
    if bool((how.top_p < 1).any()):
        e_RV = torch.where(e_RV >= nucleus_edge(e_RV, how.top_p), e_RV, 0.0)
    if bool((how.min_p > 0).any()):
        e_RV = torch.where(e_RV >= how.min_p * e_RV.amax(-1, keepdim=True), e_RV, 0.0)
    return e_RV


def nucleus_edge(e_RV: Tensor, top_p: Tensor) -> Tensor:
    """(R, 1) the smallest value inside the smallest set whose share of the row's mass reaches top_p; 0 where top_p is off."""
    edges = [_nucleus_edge(row, share) if share < 1 else 0.0 for row, share in zip(e_RV, top_p[:, 0].tolist(), strict=True)]
    return torch.tensor(edges, dtype=e_RV.dtype)[:, None]


def _nucleus_edge(row_V: Tensor, share: float) -> float:
    """Without sorting the vocabulary: masses by leading bits (floats above 0 order as their bits), then a sort inside one such bucket."""
    lead = row_V.view(torch.int32) >> 16
    masses = torch.bincount(lead, weights=row_V.double())
    from_top = masses.flip(0).cumsum(0)
    wanted = share * from_top[-1]
    at = int(torch.searchsorted(from_top, wanted))
    best = row_V[lead == len(masses) - 1 - at].sort(descending=True).values
    mass = best.double().cumsum(0) + (from_top[at - 1] if at else 0.0)
    return float(best[int((mass < wanted).sum().clamp_max(len(best) - 1))])


def block_sums(e_RV: Tensor) -> Tensor:
    """(R, blocks) float64 sums of consecutive BLOCK words."""
    return _blocks(e_RV).double().sum(-1)


def inverse_cdf(e_RV: Tensor, u_R: Tensor, sums: Tensor | None = None) -> Tensor:
    """(R,) the first index whose cumulative mass exceeds u · total; a word of mass 0 is never drawn. `sums`: its block sums, if known."""
    coarse = (block_sums(e_RV) if sums is None else sums).cumsum(-1)
    total = coarse[:, -1:].contiguous()
    # u · total may round up to the total itself: never beyond the block in which the total is reached
    last_block = torch.searchsorted(coarse, total).clamp_max(coarse.shape[1] - 1)
    target = u_R.double()[:, None] * total
    block = torch.minimum(torch.searchsorted(coarse, target, right=True), last_block)
    before = torch.where(block > 0, coarse.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = _blocks(e_RV)[torch.arange(len(e_RV), device=e_RV.device), block[:, 0]].double().cumsum(-1)
    last_word = torch.searchsorted(inside, inside[:, -1:].contiguous())
    word = torch.minimum(torch.searchsorted(inside, target - before, right=True), last_word)
    return (block * BLOCK + word)[:, 0].clamp_max(e_RV.shape[1] - 1)


def _blocks(e_RV: Tensor) -> Tensor:
    """(R, blocks, BLOCK), padded with zeros where the vocabulary does not divide."""
    rows, v = e_RV.shape
    return F.pad(e_RV, (0, -v % BLOCK)).view(rows, -1, BLOCK) if v % BLOCK else e_RV.view(rows, -1, BLOCK)
