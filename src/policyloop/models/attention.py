"""Shared-prompt attention for training: one function registered with transformers, exact for every full or sliding-window layer.

In: q, k, v of one packed row (1, heads, L, D) and its layout. A prompt attends itself causally; each completion attends its
prompt and itself, the sliding window respected. Out: (1, L, heads, D). A dense 4-D mask would be slower, and wrong for windows.

Example: `model(input_ids=ids_1L, position_ids=positions_1L, layout=layout)` with attn_implementation ATTENTION.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
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
    """The function that transformers calls in place of SDPA; dropout is off in every forward of ours."""
    grouped = query.shape[1] != key.shape[1]
    pieces: list[Tensor] = []
    for segment in layout:
        p = segment.prompt_tokens
        prompt = slice(segment.start, segment.start + p)
        window = None if sliding_window is None or sliding_window >= p else _window(p, 0, p, sliding_window, query.device)
        q, k, v = (x[:, :, prompt] for x in (query, key, value))
        pieces.append(scaled_dot_product_attention(q, k, v, window, is_causal=window is None, scale=scaling, enable_gqa=grouped))
        if any(segment.completion_tokens):
            pieces.append(_completions(query, key, value, segment, scaling, sliding_window))
    return torch.cat(pieces, 2).transpose(1, 2).contiguous(), None


def _completions(
    query: Tensor, key: Tensor, value: Tensor, segment: Segment, scaling: float | None, window: int | None
) -> Tensor:
    """All completions of one prompt as a padded batch of G rows over prompt + own tokens; returns (1, heads, Σ lengths, D)."""
    p = segment.prompt_tokens
    index, real = _places(segment, query.device)
    g, t = index.shape
    prompt = slice(segment.start, segment.start + p)

    def rows(x: Tensor) -> Tensor:
        return x[0][:, index].transpose(0, 1)  # (G, heads, T, D)

    keys, values = (torch.cat([x[:, :, prompt].expand(g, -1, -1, -1), rows(x)], 2) for x in (key, value))
    mask = _window(t, p, p + t, window, query.device)
    grouped = query.shape[1] != key.shape[1]
    done = scaled_dot_product_attention(rows(query), keys, values, mask, scale=scaling, enable_gqa=grouped)
    return done.transpose(1, 2)[real].transpose(0, 1)[None]  # padding out, completions one after the other


@functools.lru_cache(maxsize=256)
def _places(segment: Segment, device: torch.device) -> tuple[Tensor, Tensor]:
    """(G, T) positions of the completions in the packed row, 0 on padding, and where they are real. The same in every layer."""
    start = segment.start + segment.prompt_tokens
    lengths = [n for n in segment.completion_tokens if n]
    index = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for i, n in enumerate(lengths):
        index[i, :n] = torch.arange(start, start + n)
        start += n
    return index.to(device), (index > 0).to(device)


@functools.lru_cache(maxsize=256)
def _window(queries: int, offset: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """(queries, keys) bool: causal from `offset`, at most `window` back."""
    i = torch.arange(queries, device=device)[:, None] + offset
    j = torch.arange(keys, device=device)[None]
    mask = j <= i
    return mask if window is None else mask & (i - j < window)


AttentionInterface.register(ATTENTION, shared_prompt_attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
