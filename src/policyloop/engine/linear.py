"""Linears for generation: on CPU the weight lies prepacked in oneDNN's own order (up to twice as fast at decode sizes).

In: any module tree. Out: the same tree with every nn.Linear replaced; `use` takes a new weight. Inference only: packed weights have no backward.

Example:
    >>> swap(model); model(x)                       # same numbers
    >>> linears(model)["model.layers.0.mlp.up_proj"].use(weight, pack(weight))
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
PACK_FOR_ROWS = 32  # the batch size oneDNN picks its order for


class FrozenLinear(nn.Module):
    """A linear whose weight is replaced as a whole. `weight` (out, in) is the base; what multiplies is `packed`, or `plain` without it."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.use(weight, pack(weight))

    def use(self, weight: Tensor, packed: Tensor | None) -> None:
        """Multiply with `weight` from now on; the base stays for the next merge."""
        self.packed = packed
        self.plain = weight if packed is None else self.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return F.linear(x, self.plain, self.bias)
        bias = self.bias if self.bias is None or self.bias.dtype == self.packed.dtype else self.bias.to(self.packed.dtype)
        return torch.ops.mkldnn._linear_pointwise(x.to(self.packed.dtype), self.packed, bias, "none", [], "").to(x.dtype)


def pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's order; None where there is no such thing (another device or dtype, an empty shape).

    A chip without bfloat16 instructions multiplies bfloat16 weights in float32: six times faster there than the generic way, twice the memory.
    """
    if weight.device.type != "cpu" or 0 in weight.shape or not torch.backends.mkldnn.is_available():
        return None
    if weight.dtype == torch.bfloat16 and not fast_bfloat16():
        weight = weight.float()
    if weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_FOR_ROWS)


@functools.cache
def fast_bfloat16() -> bool:
    """Whether oneDNN packs bfloat16 on this chip."""
    try:
        torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=torch.bfloat16), PACK_FOR_ROWS)
    except RuntimeError:
        return False
    return True


def swap(module: nn.Module) -> None:
    """Replace every plain nn.Linear below `module`; subclasses and quantised weights keep their own forward."""
    for name, child in list(module.named_children()):
        if type(child) is nn.Linear and type(child.weight.data) is Tensor:
            setattr(module, name, FrozenLinear(child.weight.data, None if child.bias is None else child.bias.data))
        else:
            swap(child)


def dequantised(model: ModuleT, dtype: torch.dtype) -> ModuleT:
    """Quantised weights as plain ones of the same numbers. For CPUs, where torchao's own kernels take ten times as long."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear) and weight is not None and type(weight.data) is not Tensor:
            module.weight = nn.Parameter(_dequantised(weight.data), requires_grad=False)
    return model.to(dtype)


def _dequantised(weight: Any) -> Tensor:
    """In float32 where the class can: its own type may be bfloat16, which would round once more."""
    exact = {"output_dtype": torch.float32} if "output_dtype" in inspect.signature(weight.dequantize).parameters else {}
    return weight.dequantize(**exact)


def linears(module: nn.Module) -> dict[str, FrozenLinear]:
    return {name: m for name, m in module.named_modules() if isinstance(m, FrozenLinear)}
