"""The KV of everything that is being generated, and the attention function that reads it.

A prompt's KV is stored once per group, as a prefix all its rows share; every row's own tokens lie behind it in preallocated space. Rows leave
when they finish (`keep`), new groups join between steps (`add`).

Shapes: prompt (groups, kv heads, P, D), own (rows, kv heads, T, D); rows are sorted by group. R rows, `n` query heads per kv head.

Example: two prompts with 4 samples each: prompt KV of 2, own KV of 8, `group_R` [0 0 0 0 1 1 1 1].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "policyloop_engine"
GROW = 64  # own space is allocated in steps of so many tokens


@dataclass
class Prefill:
    """Right-padded prompts on their way in: collects (prompts, kv heads, P, D) per layer."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        self.keys[layer], self.values[layer] = k, v
        length = q.shape[2]
        mask = None
        if window is not None and window < length:
            i = torch.arange(length, device=q.device)
            mask = (i[None] <= i[:, None]) & (i[:, None] - i[None] < window)
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped)


@dataclass
class Cache:
    """What is being decoded. `length_R`: own tokens per row, the next one's index; `prompt_R`: its prompt's length."""

    prompt_k: dict[int, Tensor] = field(default_factory=dict)
    prompt_v: dict[int, Tensor] = field(default_factory=dict)
    own_k: dict[int, Tensor] = field(default_factory=dict)
    own_v: dict[int, Tensor] = field(default_factory=dict)
    prompt_G: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    group_R: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    length_R: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    slot_R: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    width: int = 0
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.group_R)

    def tokens(self) -> int:
        """Positions held, padding included."""
        p = next(iter(self.prompt_k.values()), None)
        o = next(iter(self.own_k.values()), None)
        return (0 if p is None else p.shape[0] * p.shape[2]) + (0 if o is None else o.shape[0] * o.shape[2])

    def add(self, fresh: Prefill, lengths: list[int], samples: list[int]) -> None:
        """New groups with so many rows each."""
        first = len(self.prompt_G)
        for layer, k in fresh.keys.items():
            self.prompt_k[layer] = _stack(self.prompt_k.get(layer), k)
            self.prompt_v[layer] = _stack(self.prompt_v.get(layer), fresh.values[layer])
            rows = sum(samples)
            own = self.own_k.get(layer)
            space = k.new_zeros(rows, k.shape[1], GROW if own is None else own.shape[2], k.shape[3])
            self.own_k[layer] = space if own is None else torch.cat([own, space])
            own = self.own_v.get(layer)
            self.own_v[layer] = space.clone() if own is None else torch.cat([own, space])
        groups = torch.arange(first, first + len(lengths)).repeat_interleave(torch.tensor(samples))
        self.prompt_G = torch.cat([self.prompt_G, torch.tensor(lengths)])
        self.group_R = torch.cat([self.group_R, groups])
        self.length_R = torch.cat([self.length_R, torch.zeros(len(groups), dtype=torch.int64)])
        self._arrange()

    def keep(self, rows: Tensor) -> None:
        """Only these rows go on; groups without rows leave with them."""
        groups, self.group_R = self.group_R[rows].unique(return_inverse=True)
        self.length_R = self.length_R[rows]
        own = {"k": self.own_k, "v": self.own_v}
        for part in own.values():
            for layer, x in part.items():
                part[layer] = x[rows]
        if len(groups) < len(self.prompt_G):
            self.prompt_G = self.prompt_G[groups]
            longest = int(self.prompt_G.max()) if len(groups) else 0
            for part in (self.prompt_k, self.prompt_v):
                for layer, x in part.items():
                    part[layer] = x[groups][:, :, :longest]
        self._arrange()

    def begin_step(self) -> Tensor:
        """Make room for one more own token per row; (R,) positions of the tokens about to be fed."""
        need = int(self.length_R.max()) + 1
        for part in (self.own_k, self.own_v):
            for layer, x in part.items():
                if x.shape[2] < need:
                    part[layer] = F.pad(x, (0, 0, 0, GROW))
        self.masks = {}
        return self.prompt_G[self.group_R] + self.length_R

    def end_step(self) -> None:
        self.length_R = self.length_R + 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        """q (R, heads, 1, D) against the row's prompt and own tokens."""
        r = torch.arange(self.rows)
        own_k, own_v = self.own_k[layer], self.own_v[layer]
        own_k[r, :, self.length_R], own_v[r, :, self.length_R] = k[:, :, 0], v[:, :, 0]
        t = int(self.length_R.max()) + 1
        rows, heads, _, d = q.shape
        kv_heads = k.shape[1]
        query = (q[:, :, 0] * scaling).view(rows, kv_heads, heads // kv_heads, d)
        prompt_mask, own_mask = self._masks(window, t)
        scores = torch.cat(
            [
                self._to_prompts(query, self.prompt_k[layer].transpose(-1, -2)).float().masked_fill(prompt_mask, -1e30),
                (query @ own_k[:, :, :t].transpose(-1, -2)).float().masked_fill(own_mask, -1e30),
            ],
            -1,
        )
        w = scores.softmax(-1).to(v.dtype)
        p = self.prompt_k[layer].shape[2]
        out = self._to_prompts(w[..., :p].contiguous(), self.prompt_v[layer]) + w[..., p:] @ own_v[:, :, :t]
        return out.reshape(rows, heads, 1, d)

    def _to_prompts(self, x: Tensor, prompt: Tensor) -> Tensor:
        """(R, kv, n, a) times each row's group's (kv, a, b) -> (R, kv, n, b), one product per group for all its rows."""
        rows, kv, n, a = x.shape
        groups, b = len(self.prompt_G), prompt.shape[-1]
        if self.width * groups != rows:  # ragged: pad the groups to equal width
            padded = x.new_zeros(groups, self.width, kv, n, a)
            padded[self.group_R, self.slot_R] = x
        else:
            padded = x.view(groups, self.width, kv, n, a)
        y = padded.permute(0, 2, 1, 3, 4).reshape(groups, kv, self.width * n, a) @ prompt
        y = y.view(groups, kv, self.width, n, b).permute(0, 2, 1, 3, 4)
        return y.reshape(rows, kv, n, b) if self.width * groups == rows else y[self.group_R, self.slot_R]

    def _masks(self, window: int | None, t: int) -> tuple[Tensor, Tensor]:
        """True where a row must not look: (R, 1, 1, P) and (R, 1, 1, t). The same for all layers with one window."""
        if window not in self.masks:
            p = next(iter(self.prompt_k.values())).shape[2]
            length = self.prompt_G[self.group_R][:, None]
            j, i = torch.arange(p)[None], torch.arange(t)[None]
            prompt, own = j >= length, i > self.length_R[:, None]
            if window is not None:
                prompt = prompt | (length + self.length_R[:, None] - j >= window)
                own = own | (self.length_R[:, None] - i >= window)
            self.masks[window] = (prompt[:, None, None], own[:, None, None])
        return self.masks[window]

    def _arrange(self) -> None:
        """Each row's place inside its group, and the widest group."""
        counts = torch.bincount(self.group_R, minlength=len(self.prompt_G))
        starts = counts.cumsum(0) - counts
        self.slot_R = torch.arange(self.rows) - starts[self.group_R]
        self.width = int(counts.max()) if len(counts) else 0
        self.masks = {}


def _stack(old: Tensor | None, new: Tensor) -> Tensor:
    """Prompts below each other, padded to the longest."""
    if old is None:
        return new
    width = max(old.shape[2], new.shape[2])
    return torch.cat([F.pad(x, (0, 0, 0, width - x.shape[2])) for x in (old, new)])


def engine_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    kv: Prefill | Cache | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls; the state comes along as `kv`."""
    assert kv is not None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = kv.attend(module.layer_idx, query, key, value, scale, sliding_window)  # type: ignore[arg-type]
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, engine_attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
