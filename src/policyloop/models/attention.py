"""Shared-prompt attention for training: one function registered with transformers, exact for every full or sliding-window layer.

In: q, k, v of one packed row (1, heads, L, D) and its layout. A prompt attends itself causally; each completion attends its prompt and
itself, the sliding window respected. Out: (1, L, heads, D). A dense 4-D mask would be slower, and wrong for windows.

Example: `model(input_ids=ids_1L, position_ids=positions_1L, layout=layout)` with attn_implementation ATTENTION.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from policyloop.types import Segment

ATTENTION = "policyloop_shared"


def shared_prompt_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Sequence[Segment] = (),
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in place of SDPA."""
    grouped = query.shape[1] != key.shape[1]
    pieces: list[Tensor] = []
    for segment in layout:
        p, s = segment.prompt_tokens, segment.start
        prompt = slice(s, s + p)
        mask = _window(p, 0, p, sliding_window, query.device)
        done = F.scaled_dot_product_attention(
            query[:, :, prompt], key[:, :, prompt], value[:, :, prompt], mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
        pieces.append(done)
        if any(segment.completion_tokens):
            pieces.append(_completions(query, key, value, segment, scaling, sliding_window))
    return torch.cat(pieces, 2).transpose(1, 2).contiguous(), None


def _completions(query: Tensor, key: Tensor, value: Tensor, segment: Segment, scaling: float | None, window: int | None) -> Tensor:
    """All completions of one prompt as a padded batch of G rows over prompt + own tokens; returns (1, heads, Σ lengths, D)."""
    p, start = segment.prompt_tokens, segment.start + segment.prompt_tokens
    lengths = [n for n in segment.completion_tokens if n]
    g, t = len(lengths), max(lengths)
    index = torch.zeros(g, t, dtype=torch.int64)
    real = torch.zeros(g, t, dtype=torch.bool)
    for i, n in enumerate(lengths):
        index[i, :n] = torch.arange(start, start + n)
        real[i, :n] = True
        start += n
    index, real = index.to(query.device), real.to(query.device)

    def rows(x: Tensor) -> Tensor:
        return x[0][:, index].transpose(0, 1)  # (G, heads, T, D)

    prompt = slice(segment.start, segment.start + p)
    keys = torch.cat([key[:, :, prompt].expand(g, -1, -1, -1), rows(key)], 2)
    values = torch.cat([value[:, :, prompt].expand(g, -1, -1, -1), rows(value)], 2)
    mask = _window(t, p, p + t, window, query.device, always=True)
    grouped = query.shape[1] != key.shape[1]
    done = F.scaled_dot_product_attention(rows(query), keys, values, mask, scale=scaling, enable_gqa=grouped)
    return done.transpose(1, 2)[real].transpose(0, 1)[None]  # padding out, completions one after the other


def _window(queries: int, offset: int, keys: int, window: int | None, device: torch.device, always: bool = False) -> Tensor | None:
    """(queries, keys) bool: causal from `offset`, at most `window` back; None where plain causal SDPA does the same."""
    if not always and (window is None or window >= keys):
        return None
    i = torch.arange(queries, device=device)[:, None] + offset
    j = torch.arange(keys, device=device)[None]
    mask = j <= i
    return mask if window is None else mask & (i - j < window)


AttentionInterface.register(ATTENTION, shared_prompt_attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
