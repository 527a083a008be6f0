"""The policy: packed rows in, log-probs and entropy out. Trunk and chunked head in one module, LoRA or full, reference included.

forward(packed, temperature) -> Outputs(logprobs_NT, entropy_NT) float32, 0 where not needed.

Example:
    >>> policy = load_policy(ModelSettings(base_model_path="smollm2-135m-instruct"), "auto", "auto", seed=0)
    >>> policy(pack([("g", [1, 2], [3])], torch.ones(1, 1, dtype=torch.bool)), temperature=1.0).logprobs_NT.shape
    torch.Size([1, 1])
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from policyloop.errors import BadInput
from policyloop.models import ModelSettings
from policyloop.models.attention import ATTENTION
from policyloop.models.catalogue import resolve
from policyloop.models.head import TokenLogprobs
from policyloop.types import Outputs, Packed

log = logging.getLogger(__name__)
Precision = Literal["fp32", "bf16", "fp16"]


class PolicyModel(nn.Module):
    """A Hugging Face causal LM as the trainer needs it. Trainable weights are fp32; a frozen base may be bf16."""

    def __init__(self, model: PreTrainedModel | PeftModel, base_path: Path, precision: Precision, device: str) -> None:
        super().__init__()
        self.model, self.base_path, self.precision, self.device_name = model, base_path, precision, device
        self.causal = cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)
        self.packs = packs_rows(self.causal.config)
        self.anchor: dict[str, Tensor] | None = None
        self.extra: dict[str, bytes] = {}
        if self.packs:
            self.causal.set_attn_implementation(ATTENTION)
        else:
            log.warning("%s has layers other than attention: every completion takes a row of its own", self.causal.config.model_type)

    # --- forward ------------------------------------------------------------------------------------------------------------

    def forward(self, packed: Packed, temperature: float, entropy: bool = True) -> Outputs:
        """Log-probs at `temperature` and entropy (with gradient only if `entropy`) of every needed token."""
        with self._autocast():
            hidden_LH = self._trunk(packed)
            at, target = packed.row_NT[packed.needed_NT], packed.target_NT[packed.needed_NT]
            head = self.causal.get_output_embeddings()
            chosen = hidden_LH[at.to(hidden_LH.device)].to(head.weight.dtype if self.precision == "fp32" else self._compute_dtype())
            weight = head.weight.to(chosen.dtype)
            cap = getattr(self.causal.config.get_text_config(), "final_logit_softcapping", None)
            scale = getattr(self.causal.config.get_text_config(), "logits_scaling", None)
            logprobs, entropies = TokenLogprobs.apply(
                chosen, weight, head.bias, target.to(chosen.device), temperature * (scale or 1.0), cap, entropy
            )
        out = Outputs(*(torch.zeros(packed.row_NT.shape) for _ in range(2)))
        out.logprobs_NT = out.logprobs_NT.masked_scatter(packed.needed_NT, logprobs.cpu())
        out.entropy_NT = out.entropy_NT.masked_scatter(packed.needed_NT, entropies.cpu())
        return out

    def _trunk(self, packed: Packed) -> Tensor:
        """(L, H) hidden states of the packed positions."""
        if not self.packs:
            return self._plain_rows(packed)
        ids, positions = packed.token_ids_L[None].to(self.device_name), packed.position_ids_L[None].to(self.device_name)
        body = self.causal.get_decoder() if hasattr(self.causal, "get_decoder") else self.causal.base_model
        out = body(input_ids=ids, position_ids=positions, use_cache=False, layout=packed.layout)
        return out.last_hidden_state[0]

    def _plain_rows(self, packed: Packed) -> Tensor:
        """One right-padded row per completion, for models whose layers cannot share a prompt; scattered back to packed positions."""
        rows: list[list[int]] = []
        for s in packed.layout:
            prompt, start = list(range(s.start, s.start + s.prompt_tokens)), s.start + s.prompt_tokens
            for n in s.completion_tokens:
                rows.append(prompt + list(range(start, start + n)))
                start += n
        width = max(map(len, rows))
        index = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        ids = torch.where(real.bool(), packed.token_ids_L[index], 0).to(self.device_name)
        body = self.causal.get_decoder() if hasattr(self.causal, "get_decoder") else self.causal.base_model
        hidden = body(input_ids=ids, attention_mask=real.to(self.device_name), use_cache=False).last_hidden_state
        # a prompt's states are the same in each of its rows: which copy lands does not matter
        flat = torch.zeros(len(packed.token_ids_L), hidden.shape[-1], dtype=hidden.dtype, device=hidden.device)
        return flat.index_put((index[real.bool()].to(hidden.device),), hidden[real.bool().to(hidden.device)])

    def _compute_dtype(self) -> torch.dtype:
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[self.precision]

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(torch.device(self.device_name).type, self._compute_dtype())

    # --- reference ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, forward is the frozen reference: the adapter off, or the anchor's weights in place of the policy's."""
        if self.anchor is None and isinstance(self.model, PeftModel):
            with self.model.disable_adapter():
                yield
            return
        assert self.anchor is not None, "full fine-tuning keeps a copy of its start: keep_reference() comes before the first update"
        own = {name: p.data for name, p in self.trainable()}
        try:
            for name, p in self.trainable():
                p.data = self.anchor[name]
            yield
        finally:
            for name, p in self.trainable():
                p.data = own[name]

    def keep_reference(self) -> None:
        """Full fine-tuning: remember the start (a second copy; LoRA's reference costs nothing)."""
        if not isinstance(self.model, PeftModel):
            self.sync_reference()

    def sync_reference(self) -> None:
        """The reference becomes a copy of the policy as it is now (reference_model_freeze: false)."""
        self.anchor = {name: p.detach().clone() for name, p in self.trainable()}

    # --- parameters ---------------------------------------------------------------------------------------------------------

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    def trainable_count(self) -> int:
        return sum(p.numel() for _, p in self.trainable())

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def weights_tensors(self) -> tuple[Literal["lora", "full"], dict[str, Tensor], float, str]:
        """kind, tensors by name (copies), LoRA scaling, digest of the base: what an engine needs to become this policy."""
        base = base_digest(self.base_path)
        if not isinstance(self.model, PeftModel):
            return "full", {n: p.detach().clone() for n, p in self.causal.named_parameters()}, 1.0, base
        tensors = {}
        for name, p in self.trainable():
            module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
            tensors[f"{module}.lora_{kind[0]}"] = p.detach().clone()
        config = self.model.peft_config["default"]
        return "lora", tensors, config.lora_alpha / config.r, base

    def merged_state(self) -> dict[str, Tensor]:
        """Base names -> weights with the adapter added in fp32 and cast back to the base's dtype."""
        kind, tensors, scaling, _ = self.weights_tensors()
        if kind == "full":
            return tensors
        out = {}
        for name, p in self.causal.named_parameters():
            if ".lora_" in name:
                continue
            plain = name.replace(".base_layer.", ".")
            module = plain.removesuffix(".weight")
            out[plain] = p.detach().clone()
            if f"{module}.lora_A" in tensors:
                delta = scaling * tensors[f"{module}.lora_B"].float() @ tensors[f"{module}.lora_A"].float()
                out[plain] = (p.detach().float() + delta).to(p.dtype)
        return out

    # --- files --------------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """The policy folder as bytes: a peft adapter, or a whole Hugging Face folder. Loads elsewhere without policyloop."""
        anchor = {} if self.anchor is None else {"reference.safetensors": save_tensors({k: v.contiguous() for k, v in self.anchor.items()})}
        if isinstance(self.model, PeftModel):
            config = self.model.peft_config["default"].to_dict()
            config = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
            config["inference_mode"] = True
            state = {k: v.contiguous() for k, v in get_peft_model_state_dict(self.model).items()}
            text = json.dumps(config, indent=1, sort_keys=True, default=str)
            return {"adapter_config.json": text.encode(), "adapter_model.safetensors": save_tensors(state), **anchor, **self.extra}
        state = {n: p.detach().contiguous() for n, p in self.causal.named_parameters()}
        return {
            "config.json": self.causal.config.to_json_string().encode(),
            "model.safetensors": save_tensors(state, metadata={"format": "pt"}),
            **anchor,
            **self.extra,
        }

    def load_files(self, files: Mapping[str, bytes]) -> None:
        """The inverse of `files`, bit for bit."""
        if isinstance(self.model, PeftModel):
            state = load_tensors(files["adapter_model.safetensors"])
            set_peft_model_state_dict(self.model, state)
        else:
            own = dict(self.causal.named_parameters())
            with torch.no_grad():
                for name, value in load_tensors(files["model.safetensors"]).items():
                    own[name].copy_(value)
        if "reference.safetensors" in files:
            self.anchor = {k: v.to(self.device_name) for k, v in load_tensors(files["reference.safetensors"]).items()}

    def save(self, folder: Path) -> None:
        """`files` on disk."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files().items():
            (folder / name).write_bytes(data)


def load_policy(settings: ModelSettings, precision: str, device: str, seed: int) -> PolicyModel:
    """Load base and adapter, ready to train. A base_model_path that is itself an adapter folder goes on training that adapter (F13)."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    chosen = choose_precision(precision, device)
    path = resolve(settings.base_model_path)
    adapter = path if (path / "adapter_config.json").exists() else None
    if adapter is not None:
        path = resolve(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])
    frozen = settings.lora is not None
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[chosen] if frozen else torch.float32
    base = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    base.config.use_cache = False
    torch.manual_seed(seed)
    model = base if settings.lora is None else adapt(base, settings, adapter)
    silence_dropout(model)
    if settings.gradient_checkpointing is True:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    policy = PolicyModel(model.to(device), path, chosen, device).train()
    if policy.trainable_count() == 0:
        raise BadInput(f"no parameter of {settings.base_model_path} would train", "target_modules that the model has", "model.lora")
    return policy


def adapt(base: PreTrainedModel, settings: ModelSettings, adapter: Path | None) -> PeftModel:
    """Put the adapter on: fresh, or the saved one made trainable again."""
    assert settings.lora is not None
    if adapter is not None:
        model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    else:
        lora = settings.lora
        targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
        config = LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=lora.dropout, task_type="CAUSAL_LM")
        try:
            model = cast(PeftModel, get_peft_model(base, config))
        except ValueError as problem:
            raise BadInput(f"model.lora does not fit the model ({problem})", "names of its linear layers, or all-linear", "model.lora.target_modules") from problem
    for _, p in model.named_parameters():
        if p.requires_grad:
            p.data = p.data.float()
    return model


def silence_dropout(model: nn.Module) -> None:
    """p = 0 everywhere: two forwards of the same weights must agree (S0-33), and train() mode stays on for gradient checkpointing."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for config in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        for name in ("attention_dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "embd_pdrop"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
    for module in model.modules():
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]


def choose_precision(asked: str, device: str) -> Precision:
    """`auto`: bf16 where the chip does it fast, else fp16 with scaler on CUDA, else fp32."""
    if asked in ("fp32", "bf16", "fp16"):
        return cast(Precision, asked)
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"
    fast = any(getattr(torch.cpu, name, lambda: False)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return "bf16" if fast else "fp32"


def packs_rows(config: Any) -> bool:
    """Whether every layer is full or sliding attention, so that completions can share their prompt's row."""
    text = config.get_text_config()
    if getattr(text, "attn_logit_softcapping", None) is not None:  # SDPA has no soft cap on scores
        return False
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    return kinds <= {"full_attention", "sliding_attention"} and config.model_type not in ("gpt2", "mamba", "mamba2", "rwkv")


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, independent of order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        total.update(f"{name}|{t.dtype}|{tuple(t.shape)}|".encode())
        total.update(t.view(torch.uint8).numpy().data if t.dim() else t.reshape(1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def base_digest(path: Path) -> str:
    """sha256 of a model folder's weight files: trainer and engine must have started from the same bytes."""
    files = sorted(p for p in path.iterdir() if p.suffix in (".safetensors", ".bin"))
    return _files_digest(tuple((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files))


@functools.lru_cache(maxsize=16)
def _files_digest(files: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for name, size, _ in files:
        total.update(f"{os.path.basename(name)}|{size}|".encode())
        with open(name, "rb") as file:
            while chunk := file.read(1 << 22):
                total.update(chunk)
    return total.hexdigest()
