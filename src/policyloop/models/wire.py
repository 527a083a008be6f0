"""A critic's inputs as bytes and back: safetensors for tensors, plain numbers for the layout. No pickle, no gRPC here.

Example:
    >>> unpacked(*packed_bytes(packed)).needed_NT.shape == packed.needed_NT.shape
    True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from safetensors.torch import load, save
from torch import Tensor

from policyloop.types import Packed, Segment

FIELDS = ("token_ids_L", "position_ids_L", "row_NT", "target_NT", "needed_NT")
Layout = Sequence[tuple[int, int, Sequence[int]]]


def packed_bytes(packed: Packed) -> tuple[bytes, Layout]:
    """(tensors, layout as (start, prompt tokens, completion tokens))."""
    layout = [(s.start, s.prompt_tokens, s.completion_tokens) for s in packed.layout]
    return tensor_bytes({name: getattr(packed, name) for name in FIELDS}), layout


def unpacked(tensors: bytes, layout: Layout) -> Packed:
    """Errors: ValueError for bytes that are no such packed row."""
    found = tensors_of(tensors)
    if set(found) != set(FIELDS):
        raise ValueError(f"a packed row has {', '.join(FIELDS)}, not {', '.join(sorted(found))}")
    segments = tuple(Segment(start, prompt, tuple(completions)) for start, prompt, completions in layout)
    length = found["token_ids_L"].numel()
    if any(s.start < 0 or s.start + s.prompt_tokens + sum(s.completion_tokens) > length for s in segments):
        raise ValueError(f"the layout goes beyond the {length} tokens of the row")
    if found["row_NT"].numel() and int(found["row_NT"].max()) >= length:
        raise ValueError(f"a position lies beyond the {length} tokens of the row")
    return Packed(layout=segments, **found)


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """Errors: ValueError for bytes that are no safetensors."""
    try:
        return load(data)
    except Exception as problem:
        raise ValueError(f"no safetensors: {problem}") from problem
