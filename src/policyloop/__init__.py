"""policyloop: train, prove, ship, watch, roll back, collect, retrain language models by reinforcement learning.

Example:
    >>> import policyloop
    >>> run = policyloop.train(model="smollm2-135m-instruct", data=rows, reward=f, algorithm=policyloop.GRPO(group_size=8), steps=20)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policyloop.quick import GFPO, GRPO, SFT, train

__version__ = "0.1.0"
__all__ = ["GFPO", "GRPO", "SFT", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """The public names load torch, so they load on first use."""
    if name in __all__:
        import importlib

        return getattr(importlib.import_module("policyloop.quick"), name)
    raise AttributeError(f"module policyloop has no attribute {name}")
