"""The KV of everything that is being generated, and the attention function that reads it.

A prompt's KV is stored once per group, as a prefix all its rows share; every row's own tokens lie in preallocated space of their own.
New groups join between steps (`add`); rows leave when they finish (`keep`), and the last row moves into the gap, so that leaving costs
one row's copy. Exact for full and sliding-window layers, groups of any size and prompts of any length.

Shapes: prompt (groups, kv heads, P, D), own (rows, kv heads, T, D); n = query heads per kv head.

Example: two prompts with 4 samples each: prompt KV of 2, own KV of 8, groups [0 0 0 0 1 1 1 1].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "policyloop_engine"
GROW = 64  # own space is allocated in steps of so many tokens
NEVER = -1e30  # a score that softmax turns into 0


@dataclass(frozen=True, slots=True)
class Head:
    """The first `length` tokens of a prompt, done before: keys and values per layer, (1, kv heads, >= length, D)."""

    length: int
    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]


class Prefill:
    """Prompts on their way in, packed into one row without padding; collects their keys and values per layer, (1, kv heads, L, D).

    `lengths`: whole prompts. `heads`: what of each is there already and is not fed again (None: nothing)."""

    def __init__(self, lengths: Sequence[int], heads: Sequence[Head | None] | None = None) -> None:
        self.lengths = list(lengths)
        self.heads = heads if heads is not None and any(heads) else None
        done = [0 if head is None else head.length for head in self.heads or [None] * len(self.lengths)]
        self.fed = [n - m for n, m in zip(self.lengths, done, strict=True)]
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        """Every prompt looks at itself alone."""
        if self.heads is not None:
            k = self._behind([None if head is None else head.keys[layer][:, :, : head.length] for head in self.heads], k)
            v = self._behind([None if head is None else head.values[layer][:, :, : head.length] for head in self.heads], v)
        self.keys[layer], self.values[layer] = k, v
        grouped = q.shape[1] != k.shape[1]
        pieces = []
        for qp, kp, vp in zip(q.split(self.fed, 2), k.split(self.lengths, 2), v.split(self.lengths, 2), strict=True):
            mask = _causal_window(qp.shape[2], kp.shape[2], window, q.device)
            causal = mask is None
            pieces.append(F.scaled_dot_product_attention(qp, kp, vp, mask, is_causal=causal, scale=scaling, enable_gqa=grouped))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)

    def _behind(self, heads: Sequence[Tensor | None], fed: Tensor) -> Tensor:
        """Each prompt's head before what was fed of it."""
        pairs = zip(heads, fed.split(self.fed, 2), strict=True)
        return torch.cat([x for head, new in pairs for x in ((new,) if head is None else (head, new))], 2)

    def prompt(self, i: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Copies of one prompt's keys and values."""
        start = sum(self.lengths[:i])
        part = (slice(None), slice(None), slice(start, start + self.lengths[i]))
        keys = {layer: x[part].clone() for layer, x in self.keys.items()}
        return keys, {layer: x[part].clone() for layer, x in self.values.items()}


class Slots:
    """Keys and values per layer, (slots, kv heads, width, D): in use from the front, growing, never smaller."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def tensors(self) -> list[Tensor]:
        return [*self.keys.values(), *self.values.values()]

    def reserve(self, like: Prefill | Slots, slots: int, width: int) -> None:
        """Room for so many; what is there stays, what is new is 0."""
        for mine, theirs in ((self.keys, like.keys), (self.values, like.values)):
            for layer, x in theirs.items():
                old = mine.get(layer)
                if old is None:
                    mine[layer] = x.new_zeros(slots, x.shape[1], width, x.shape[3])
                elif old.shape[0] < slots or old.shape[2] < width:
                    more = max(slots, old.shape[0] * 3 // 2) if old.shape[0] < slots else old.shape[0]
                    mine[layer] = old.new_zeros(more, old.shape[1], max(width, old.shape[2]), old.shape[3])
                    mine[layer][: old.shape[0], :, : old.shape[2]] = old

    def write_prompts(self, first: int, fresh: Prefill) -> None:
        """Into the slots from `first` on; zeros behind them, as in `clear`."""
        for mine, theirs in ((self.keys, fresh.keys), (self.values, fresh.values)):
            for layer, packed in theirs.items():
                for i, prompt in enumerate(packed[0].split(fresh.lengths, 1)):
                    mine[layer][first + i, :, : prompt.shape[1]] = prompt
                    mine[layer][first + i, :, prompt.shape[1] :] = 0

    def clear(self, first: int, last: int) -> None:
        """Zeros: a slot's last owner may have left numbers that are not finite."""
        for x in self.tensors():
            x[first:last].zero_()

    def move(self, source: int, target: int) -> None:
        for x in self.tensors():
            x[target] = x[source]


class Cache:
    """What is being decoded. `prompts`: tokens per group; `groups`: each row's group; `own`: own tokens per row, fed and stored."""

    def __init__(self) -> None:
        self.shared, self.private = Slots(), Slots()
        self.prompts: list[int] = []
        self.groups: list[int] = []
        self.own: list[int] = []
        self._step = Step(self, torch.device("cpu"))

    def add(self, fresh: Prefill, samples: Sequence[int]) -> None:
        """New groups with so many rows each, behind those that are there."""
        groups, rows, more = len(self.prompts), len(self.own), sum(samples)
        self.prompts += fresh.lengths
        self.shared.reserve(fresh, len(self.prompts), max(self.prompts))
        self.shared.write_prompts(groups, fresh)
        self.private.reserve(fresh, rows + more, GROW)
        self.private.clear(rows, rows + more)
        for i, count in enumerate(samples):
            self.groups += [groups + i] * count
        self.own += [0] * more

    def keep(self, alive: Collection[int]) -> list[int]:
        """Only these rows go on; the new order, as old indices. Groups without rows leave with them."""
        order = _close_gaps(len(self.own), set(alive), self.private.move)
        self.own = [self.own[r] for r in order]
        groups = [self.groups[r] for r in order]
        stay = _close_gaps(len(self.prompts), set(groups), self.shared.move)
        self.prompts = [self.prompts[g] for g in stay]
        self.groups = [stay.index(g) for g in groups]
        return order

    def begin_step(self) -> list[int]:
        """Make room for one more own token per row; the positions of the tokens about to be fed."""
        width = next(iter(self.private.keys.values())).shape[2]
        if max(self.own) + 1 > width:
            self.private.reserve(self.private, len(self.own), width + GROW)
        self._step = Step(self, next(iter(self.private.keys.values())).device)
        return [self.prompts[g] + n for g, n in zip(self.groups, self.own, strict=True)]

    def end_step(self) -> None:
        self.own = [n + 1 for n in self.own]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
        """q (R, heads, 1, D) against each row's prompt and own tokens."""
        step = self._step
        (rows, heads, _, d), kv = q.shape, k.shape[1]
        own_k, own_v = self.private.keys[layer][:rows], self.private.values[layer][:rows]
        step.write(own_k, k)
        step.write(own_v, v)
        own_k, own_v = own_k[:, :, : step.width], own_v[:, :, : step.width]
        prompt = (slice(len(self.prompts)), slice(None), slice(step.prompt_width))
        query = (q[:, :, 0] * scaling).view(rows, kv, heads // kv, d)
        to_prompt = step.times_prompt(query, self.shared.keys[layer][prompt].transpose(-1, -2)).float()
        to_own = (query @ own_k.transpose(-1, -2)).float()
        hidden_prompt, hidden_own = step.hidden(window)
        if hidden_prompt is not None:
            to_prompt = to_prompt.masked_fill(hidden_prompt, NEVER)
        if hidden_own is not None:
            to_own = to_own.masked_fill(hidden_own, NEVER)
        weights = torch.cat([to_prompt, to_own], -1).softmax(-1).to(v.dtype)
        p = to_prompt.shape[-1]
        out = step.times_prompt(weights[..., :p], self.shared.values[layer][prompt]) + weights[..., p:] @ own_v
        return out.reshape(rows, heads, 1, d)


def _close_gaps(count: int, alive: set[int], move: Callable[[int, int], None]) -> list[int]:
    """The last ones move into the places of those that are gone; the new order, as old indices."""
    order = list(range(count))
    for place in range(count):
        while len(order) > place and order[-1] not in alive:
            order.pop()
        if place < len(order) and order[place] not in alive:
            move(len(order) - 1, place)
            order[place] = order.pop()
    return order


class Step:
    """What all layers of one decoding step share: where rows write, who looks at what, how rows line up with their prompts."""

    def __init__(self, cache: Cache, device: torch.device) -> None:
        self.own, self.groups = cache.own, cache.groups
        self.width = max(cache.own, default=0) + 1  # own tokens that exist after this step's are written
        self.level = len(set(cache.own)) <= 1
        self.prompt_width = max(cache.prompts, default=0)
        self.prompt_R = [cache.prompts[g] for g in cache.groups]
        counts = [cache.groups.count(g) for g in range(len(cache.prompts))]
        self.count, self.widest = len(counts), max(counts, default=0)
        self.row_index = torch.arange(len(cache.own), device=device)
        self.own_R = torch.tensor(cache.own, dtype=torch.int64, device=device)
        self.even = cache.groups == [g for g in range(self.count) for _ in range(self.widest)]
        if not self.even:  # gather the groups to equal width; empty places hold some row and are thrown away
            seen, slots, filled = [0] * self.count, [], [0] * (self.count * self.widest)
            for r, g in enumerate(cache.groups):
                slots.append(g * self.widest + seen[g])
                filled[slots[-1]] = r
                seen[g] += 1
            self.slot_R, self.filled = torch.tensor(slots, device=device), torch.tensor(filled, device=device)
        self._hidden: dict[int | None, tuple[Tensor | None, Tensor | None]] = {}

    def write(self, store: Tensor, new: Tensor) -> None:
        """This step's keys or values (R, kv, 1, D) behind each row's own tokens."""
        if self.level:
            store[:, :, self.width - 1] = new[:, :, 0]
        else:
            store[self.row_index, :, self.own_R] = new[:, :, 0]

    def times_prompt(self, x: Tensor, prompt: Tensor) -> Tensor:
        """(R, kv, n, a) times each row's group's (kv, a, b) -> (R, kv, n, b): one product per group for all its rows."""
        _, kv, n, a = x.shape
        b = prompt.shape[-1]
        x = x if self.even else x[self.filled]
        x = x.reshape(self.count, self.widest, kv, n, a).transpose(1, 2).reshape(self.count, kv, self.widest * n, a)
        y = (x @ prompt).view(self.count, kv, self.widest, n, b).transpose(1, 2).reshape(-1, kv, n, b)
        return y if self.even else y[self.slot_R]

    def hidden(self, window: int | None) -> tuple[Tensor | None, Tensor | None]:
        """True where a row must not look: (R, 1, 1, P) and (R, 1, 1, T), None where it may look everywhere. One pair per window."""
        if window not in self._hidden:
            device = self.row_index.device
            length = torch.tensor(self.prompt_R, device=device)[:, None]
            at, own = length + self.own_R[:, None], self.own_R[:, None]
            j, i = torch.arange(self.prompt_width, device=device), torch.arange(self.width, device=device)
            prompt, mine = j >= length, i > own
            if window is not None:
                prompt, mine = prompt | (at - j >= window), mine | (own - i >= window)
            self._hidden[window] = (_mask(prompt), _mask(mine))
        return self._hidden[window]


def _mask(hidden_RK: Tensor) -> Tensor | None:
    return hidden_RK[:, None, None] if bool(hidden_RK.any()) else None


def _causal_window(fed: int, length: int, window: int | None, device: torch.device) -> Tensor | None:
    """(fed, length) True where the last `fed` tokens may look; None where plain causal attention does the same."""
    if fed == length and (window is None or window >= length):
        return None
    at, seen = torch.arange(length - fed, length, device=device)[:, None], torch.arange(length, device=device)
    return (seen <= at) & (at - seen < (length if window is None else window))


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
