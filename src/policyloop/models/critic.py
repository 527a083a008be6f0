"""The critic: packed rows in, the value of the state before each completion token out; its own trunk, its own optimizer, a head of zeros.

`Critic` is the seam: in this process (`CriticModel`) or behind a service. Its files are a folder of their own, `value_net/` in a checkpoint:
a model or adapter folder like the policy's, `value_head.safetensors`, `critic.json`; `load_critic` takes such a folder back.

Example:
    >>> critic = load_critic(ModelSettings(base_model_path="tiny", lora=None), CriticSettings(), "fp32", "cpu", seed=0)
    >>> critic.values(pack([("g", [1, 2], [3, 4])], torch.ones(1, 2, dtype=torch.bool)))
    tensor([[0., 0.]])
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from policyloop.errors import BadInput
from policyloop.models import CriticSettings, ModelSettings
from policyloop.models.catalogue import resolve
from policyloop.models.policy import PolicyModel, load_policy
from policyloop.types import Packed

HEAD = "value_head.safetensors"
Loss = Callable[[Tensor, int], Tensor]  # (values_NT of part i, i) -> scalar with a graph


class Critic(Protocol):
    """What the trainer needs of a critic, wherever it runs."""

    def values(self, packed: Packed) -> Tensor:
        """(N, T) float32, no gradient: the value of the state before each needed token, 0 elsewhere."""
        ...

    def learn(self, parts: Sequence[Packed], loss: Loss) -> tuple[bool, float]:
        """One optimizer step over all parts, whose losses add up. Returns (taken, gradient norm before clipping); not taken = not finite."""
        ...

    def files(self) -> dict[str, bytes]: ...

    def load(self, files: Mapping[str, bytes]) -> None: ...


class CriticModel(nn.Module):
    """A trunk like the policy's and one linear head in float32."""

    def __init__(self, trunk: PolicyModel, settings: CriticSettings) -> None:
        super().__init__()
        self.trunk, self.settings = trunk, settings
        width = trunk.causal.config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1, device=trunk.device_name, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.named = [
            *((f"trunk/{n}", p) for n, p in trunk.trainable()),
            *((f"head/{n}", p) for n, p in self.head.named_parameters()),
        ]
        self.optimizer = torch.optim.AdamW([p for _, p in self.named], lr=settings.lr, betas=settings.betas, weight_decay=0.0)
        self.scaler = torch.amp.GradScaler(enabled=trunk.precision == "fp16" and torch.cuda.is_available())

    def forward(self, packed: Packed) -> Tensor:
        with self.trunk.autocast():
            hidden_MH = self.trunk.states(packed)
        values_M = self.head(hidden_MH.float())[:, 0]
        return torch.zeros(packed.needed_NT.shape).masked_scatter(packed.needed_NT, values_M.cpu())

    @torch.no_grad()
    def values(self, packed: Packed) -> Tensor:
        return self(packed)

    def learn(self, parts: Sequence[Packed], loss: Loss) -> tuple[bool, float]:
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for i, packed in enumerate(parts):
            found = loss(self(packed), i)
            self.scaler.scale(found).backward()
            total += float(found.detach())
        self.scaler.unscale_(self.optimizer)
        limit = math.inf if self.settings.max_grad_norm is None else self.settings.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_([p for _, p in self.named], limit))
        taken = math.isfinite(total) and math.isfinite(norm)
        if taken:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return taken, norm

    # --- files --------------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """The folder and, under `optimizer/`, what it takes to go on learning bit for bit."""
        moments = {
            f"{key}/{name}": value.detach().cpu().contiguous()
            for name, p in self.named
            for key, value in self.optimizer.state.get(p, {}).items()
        }
        head = {name: p.detach().cpu().contiguous() for name, p in self.head.named_parameters()}
        about = {"kind": "critic", "hidden_size": self.head.in_features, "scaler": self.scaler.state_dict()}
        return {
            **self.trunk.files(),
            HEAD: save_tensors(head, metadata={"format": "pt"}),
            "critic.json": json.dumps(about, sort_keys=True).encode(),
            "optimizer/state.safetensors": save_tensors(moments),
        }

    def load(self, files: Mapping[str, bytes]) -> None:
        """The inverse of `files`. Errors: BadInput (another model)."""
        self.trunk.load_files(files)
        self.load_head(files[HEAD])
        by_name = dict(self.named)
        self.optimizer.state.clear()
        for key, value in load_tensors(files["optimizer/state.safetensors"]).items():
            kind, name = key.split("/", 1)
            self.optimizer.state[by_name[name]][kind] = value if kind == "step" else value.to(by_name[name].device)
        if state := json.loads(files["critic.json"])["scaler"]:
            self.scaler.load_state_dict(state)

    def load_head(self, data: bytes) -> None:
        found = load_tensors(data)
        if {n: p.shape for n, p in found.items()} != {n: p.shape for n, p in self.head.named_parameters()}:
            raise BadInput(
                "the saved value head is of another width", "a critic of the same model", "model.critic.base_model_path"
            )
        with torch.no_grad():
            for name, p in self.head.named_parameters():
                p.copy_(found[name])


def load_critic(
    model: ModelSettings, critic: CriticSettings, precision: str, device: str, seed: int, micro_batch_tokens: int = 4096
) -> CriticModel:
    """A critic that starts from `critic.base_model_path`, else from where the policy starts; with the head of a `value_net/` folder,
    else with zeros, so that it begins by expecting nothing."""
    start = critic.base_model_path or model.base_model_path
    trunk = load_policy(replace(model, base_model_path=start), precision, device, seed, micro_batch_tokens=micro_batch_tokens)
    trunk.anchor = None
    output = trunk.causal.get_output_embeddings()
    if output is not None and output.weight is not trunk.causal.get_input_embeddings().weight:
        output.requires_grad_(False)  # nothing reads its logits
    made = CriticModel(trunk, critic)
    folder = Path(resolve(start))
    if (folder / HEAD).exists():
        made.load_head((folder / HEAD).read_bytes())
    return made
