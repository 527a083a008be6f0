"""The head on the tokens that count: hidden states in, log-probs and entropy out, in chunks, never (N, T, V) in memory.

Of every token only W[y] - Σ_v p_v W_v is kept (its log-prob's gradient with respect to the hidden state, H numbers instead of V), so the
backward pass needs no second look at the vocabulary unless the head itself is trained.

Example: logits [2, 0] for 2 words, target 0, temperature 1 -> log-prob -0.1269, entropy 0.3654.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 128  # rows of hidden states per head call: 128 x 152k floats = 78 MB


def _soften(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, cap: float | None) -> tuple[Tensor, Tensor | None]:
    """Logits / temperature in float32, and the slope of the final soft cap where the model has one."""
    z = torch.nn.functional.linear(hidden, weight, bias).float()
    if cap is None:
        return z / temperature, None
    t = torch.tanh(z / cap)
    return cap * t / temperature, 1 - t * t


class TokenLogprobs(torch.autograd.Function):
    """apply(hidden_MH, weight_VH, bias_V | None, target_M, temperature, cap | None, entropy_gradient) -> logprobs_M, entropy_M, float32."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        temperature: float,
        cap: float | None,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        needs = ctx.needs_input_grad[0]
        d_logprobs = torch.empty_like(hidden) if needs else None
        d_entropy = torch.empty_like(hidden) if needs and entropy_gradient else None
        for lo in range(0, len(hidden), CHUNK):
            rows = slice(lo, lo + CHUNK)
            z, slope = _soften(hidden[rows], weight, bias, temperature, cap)
            lse = z.logsumexp(-1)
            logp = z - lse[:, None]
            p = logp.exp()
            # 0 · -inf is NaN in the naive sum: a word without probability carries no entropy
            h = -torch.where(p > 0, p * logp, 0.0).sum(-1)
            logprobs[rows] = logp.gather(1, target[rows, None])[:, 0]
            entropy[rows] = h
            if d_logprobs is not None:
                g = -p
                g[torch.arange(len(g)), target[rows]] += 1
                d_logprobs[rows] = _to_hidden(g, slope, weight, temperature)
            if d_entropy is not None:
                g = torch.where(p > 0, -p * (logp + h[:, None]), 0.0)
                d_entropy[rows] = _to_hidden(g, slope, weight, temperature)
        ctx.save_for_backward(hidden, weight, bias, target, d_logprobs, d_entropy)
        ctx.temperature, ctx.cap = temperature, cap
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        g_logprobs, g_entropy = grads
        hidden, weight, bias, target, d_logprobs, d_entropy = ctx.saved_tensors
        d_hidden = None
        if d_logprobs is not None:
            d_hidden = g_logprobs[:, None].to(hidden.dtype) * d_logprobs
            if d_entropy is not None:
                d_hidden = d_hidden + g_entropy[:, None].to(hidden.dtype) * d_entropy
        d_weight = d_bias = None
        if ctx.needs_input_grad[1] or (bias is not None and ctx.needs_input_grad[2]):
            d_weight, d_bias = _head_gradient(ctx, g_logprobs, g_entropy if d_entropy is not None else None)
        return d_hidden, d_weight, d_bias, None, None, None, None


def _to_hidden(g: Tensor, slope: Tensor | None, weight: Tensor, temperature: float) -> Tensor:
    """d/d logits (rows, V) -> d/d hidden (rows, H), in the weights' dtype."""
    g = g if slope is None else g * slope
    return (g / temperature).to(weight.dtype) @ weight


def _head_gradient(ctx: Any, g_logprobs: Tensor, g_entropy: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """d/dW and d/d bias, for full fine-tuning only: the chunks are computed once more."""
    hidden, weight, bias, target, _, _ = ctx.saved_tensors
    d_weight = torch.zeros_like(weight, dtype=torch.float32)
    d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    for lo in range(0, len(hidden), CHUNK):
        rows = slice(lo, lo + CHUNK)
        z, slope = _soften(hidden[rows], weight, bias, ctx.temperature, ctx.cap)
        logp = z.log_softmax(-1)
        p = logp.exp()
        g = -p * g_logprobs[rows, None]
        g[torch.arange(len(g)), target[rows]] += g_logprobs[rows]
        if g_entropy is not None:
            h = -torch.where(p > 0, p * logp, 0.0).sum(-1, keepdim=True)
            g += torch.where(p > 0, -p * (logp + h), 0.0) * g_entropy[rows, None]
        g = (g if slope is None else g * slope) / ctx.temperature
        d_weight += (g.to(hidden.dtype).T @ hidden).float()
        if d_bias is not None:
            d_bias += g.sum(0)
    return d_weight.to(weight.dtype), d_bias
