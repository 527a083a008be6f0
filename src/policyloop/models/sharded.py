"""A weight that may lie in pieces on several ranks (a DTensor) or whole here: read it whole, fill it, look at this rank's piece.

Reading a sharded weight whole is a collective: every rank does it, in the same order. On plain tensors each of these is trivial.

Example: `whole(p)` of a (96, 96) weight sharded over 2 ranks is (96, 96) on both; `piece(p)` is (48, 96).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(x: Tensor) -> Tensor:
    """All of it, without a graph (no copy where nothing is sharded)."""
    return cast(DTensor, x.detach()).full_tensor() if isinstance(x, DTensor) else x.detach()


def piece(x: Tensor) -> Tensor:
    """This rank's share, the same memory."""
    return cast(DTensor, x.detach()).to_local() if isinstance(x, DTensor) else x.detach()


def laid_out(like: Tensor, value: Tensor) -> Tensor:
    """A whole `value` (alike on every rank) on the device of `like`, sharded as that is."""
    value = value.to(like.device)
    if not isinstance(like, DTensor):
        return value
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Overwrite in place, keeping the memory that optimizer and engine know."""
    source = value if isinstance(value, DTensor) else laid_out(target, value)
    piece(target).copy_(piece(source))
