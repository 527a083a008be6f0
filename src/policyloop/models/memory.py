"""How much memory an update needs, before it is tried: sizes in, bytes out.

Activations are counted per token and layer for a gated MLP with grouped attention: what autograd keeps of norms, projections and
MLP. Good to a quarter (SmolLM2 in float32, 484 tokens: 0.91 GB measured, 0.88 GB counted), enough to choose checkpointing by.

Example: SmolLM2-135M with LoRA in float32, 4,096 tokens a micro-batch -> 0.6 GB weights and 6 GB activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of one update. `training` = gradients and both AdamW moments of what trains."""

    weights: int
    training: int
    activations: int
    head: int

    @property
    def total(self) -> int:
        return self.weights + self.training + self.activations + self.head

    @staticmethod
    def of(config: Any, parameters: int, trainable: int, precision: str, tokens: int, checkpointing: bool = False) -> Need:
        """`config` is a Hugging Face config, `tokens` those of one micro-batch."""
        text = config.get_text_config()
        width = BYTES[precision]
        hidden, layers = text.hidden_size, text.num_hidden_layers
        heads = text.num_attention_heads
        size = getattr(text, "head_dim", None) or hidden // heads
        kv = (getattr(text, "num_key_value_heads", None) or heads) * size
        mlp = getattr(text, "intermediate_size", None) or 4 * hidden
        # norms 4h (float32 inside), q k v with rotary copies, attention out, gate, up, activation, product
        layer = 6 * hidden + 3 * heads * size + 4 * kv + 4 * mlp
        kept = layers * hidden + layer if checkpointing else layers * layer
        base = parameters - trainable
        return Need(
            weights=base * width + trainable * 4,
            training=trainable * 12,
            activations=tokens * kept * width,
            head=tokens * hidden * (4 + width) + 6 * 30_000_000,
        )


def available_bytes(device: str) -> int:
    """Memory that a new allocation could have now: of the GPU, or of the machine within the container's limit."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return max(0, free)


def peak_rss_bytes() -> int:
    """The most memory this process has held so far."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
