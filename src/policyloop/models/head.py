"""The head on the tokens that count: hidden states in, log-probs and entropy out, in chunks, never (N, T, V) in memory.

    z = cap · tanh(W h / cap) / temperature in float32    logprob = z[y] - lse(z)    entropy = lse(z) - Σ p z

Under a frozen head only W[y] - Σ p W (a log-prob's gradient with respect to its hidden state, H numbers instead of V) is kept, so
the backward pass needs no second look at the vocabulary. A trained head, or entropy in the loss, computes the chunks once more.

Example: logits [2, 0] of a 2-word vocabulary, target 0, temperature 1 -> log-prob -0.1269, entropy 0.3654.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

CPU_CHUNK = 7_500_000  # logits of one chunk: 30 MB in float32; from 32 MB on malloc maps fresh pages for each and they cost more
CUDA_CHUNK = 2**27


@dataclass(frozen=True, slots=True)
class Head:
    """How hidden states become logits: `scale` multiplies them, `cap` bounds them softly, `temperature` divides the result."""

    scale: float = 1.0
    cap: float | None = None
    temperature: float = 1.0

    def logits(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """z in float32 (float64 stays), and d capped / d raw where there is a cap. A word that cannot be said gets -1e30, not
        -inf: 0 · -inf has no entropy."""
        z = linear(hidden, weight, bias)
        z = z if z.dtype == torch.float64 else z.float()
        if self.scale != 1.0:
            z = z.mul_(self.scale)
        if self.cap is None:
            return (z if self.temperature == 1.0 else z.div_(self.temperature)).clamp_min_(-1e30), None
        t = torch.tanh_(z.div_(self.cap))
        return t * (self.cap / self.temperature), 1 - t * t

    def to_hidden(self, g: Tensor, slope: Tensor | None, dtype: torch.dtype) -> Tensor:
        """d loss / d z -> d loss / d (W h), in the dtype of the weights; `g` is used up."""
        if slope is not None:
            g = g.mul_(slope)
        return g.mul_(self.scale / self.temperature).to(dtype)


class TokenLogprobs(torch.autograd.Function):
    """apply(hidden_MH, weight_VH, bias_V | None, target_M, head, entropy) -> logprobs_M, entropy_M (zeros unless asked for)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, head: Head, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropies = (torch.zeros(len(hidden), dtype=wide, device=hidden.device) for _ in range(2))
        keep = ctx.needs_input_grad[0] and not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2])
        slopes = torch.empty_like(hidden) if keep else None
        for rows in _chunks(hidden, weight):
            z, slope = head.logits(hidden[rows], weight, bias)
            p = torch.softmax(z, -1)
            total = p.sum(-1)  # 1, but for 1e-5 that softmax loses over a large vocabulary
            lse = z.amax(-1) - (p.amax(-1) / total).log()  # the largest p is never small; five times faster than logsumexp
            logprobs[rows] = z.gather(1, target[rows, None])[:, 0] - lse
            if entropy:
                entropies[rows] = lse - torch.linalg.vecdot(p, z) / total
            if slopes is not None:
                g = _add_at(p.div_(-total[:, None]), target[rows], torch.ones_like(lse))
                slopes[rows] = head.to_hidden(g, slope, weight.dtype) @ weight
        ctx.save_for_backward(hidden, weight, bias, target, slopes)
        ctx.head = head
        return logprobs.clamp_max_(0.0), entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g_logprobs, g_entropy = grads
        hidden, weight, bias, target, slopes = ctx.saved_tensors
        if slopes is not None and g_entropy is None:
            d_hidden = None if g_logprobs is None else (g_logprobs[:, None] * slopes).to(hidden.dtype)
            return d_hidden, None, None, None, None, None
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        d_bias = torch.zeros_like(bias, dtype=wide) if ctx.needs_input_grad[2] else None
        for rows in _chunks(hidden, weight):
            z, slope = ctx.head.logits(hidden[rows], weight, bias)
            logp = z.log_softmax(-1)
            p = logp.exp()
            g = torch.zeros_like(z)
            if g_logprobs is not None:
                g = _add_at(p * -g_logprobs[rows, None], target[rows], g_logprobs[rows])
            if g_entropy is not None:
                h = -torch.linalg.vecdot(p, logp)
                g -= p.mul_(logp.add_(h[:, None])).mul_(g_entropy[rows, None])
            d_logits = ctx.head.to_hidden(g, slope, weight.dtype)
            d_hidden[rows] = d_logits @ weight
            if d_weight is not None:
                d_weight += d_logits.T @ hidden[rows]
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        return d_hidden, _as(d_weight, weight), _as(d_bias, bias), None, None, None


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    step = max(1, (CUDA_CHUNK if hidden.is_cuda else CPU_CHUNK) // weight.shape[0])
    return [slice(lo, lo + step) for lo in range(0, len(hidden), step)]


def _add_at(x: Tensor, column: Tensor, value: Tensor) -> Tensor:
    """x[i, column[i]] += value[i], in place."""
    return x.scatter_add_(1, column[:, None], value[:, None].to(x.dtype))


def _as(gradient: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if gradient is None or like is None else gradient.to(like.dtype)
