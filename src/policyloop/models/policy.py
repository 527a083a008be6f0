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
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from policyloop.errors import BadInput
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.attention import ATTENTION
from policyloop.models.catalogue import base_of, resolve
from policyloop.models.head import Head, TokenLogprobs
from policyloop.models.lora import quicken
from policyloop.models.memory import Need, available_bytes
from policyloop.models.pack import pack
from policyloop.models.sharded import fill, piece, whole
from policyloop.models.template import load_renderer
from policyloop.types import Outputs, Packed

log = logging.getLogger(__name__)
Precision = Literal["fp32", "bf16", "fp16"]
# recurrent layers or attention sinks that no `layer_types` tells of
OTHER_LAYERS = {
    "mamba",
    "mamba2",
    "rwkv",
    "falcon_mamba",
    "recurrent_gemma",
    "jamba",
    "bamba",
    "zamba",
    "zamba2",
    "falcon_h1",
    "gpt_oss",
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BASE_NOTE = "base.json"  # in an adapter folder: which weights it was trained on


class PolicyModel(nn.Module):
    """A Hugging Face causal LM as the trainer needs it. Trainable weights are fp32; a frozen base may be bf16.

    `packs`: completions share their prompt's row; else each takes a row of its own. `extra`: files that belong into the policy's
    folder (tokenizer, template, stop ids).
    """

    def __init__(self, model: PreTrainedModel | PeftModel, base_path: Path, precision: Precision, device: str) -> None:
        super().__init__()
        self.model, self.base_path, self.precision, self.device_name = model, base_path, precision, device
        self.causal = cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)
        self.head = read_head(self.causal)
        self.anchor: dict[str, Tensor] | None = None  # a reference that was synced
        self._start: dict[str, Tensor] | None = None  # full fine-tuning: the base's weights, read when first asked for
        self.extra: dict[str, bytes] = {}
        self.packs = packs_rows(self.causal.config) and shares_exactly(self)
        if self.packs:
            self.causal.set_attn_implementation(ATTENTION)
        else:
            log.warning("%s cannot share prompts: every completion takes a row of its own", self.causal.config.model_type)

    # --- forward ------------------------------------------------------------------------------------------------------------

    def forward(self, packed: Packed, temperature: float, entropy: bool = True) -> Outputs:
        """Log-probs at `temperature` of every needed token, and (if asked for) their entropies, both with gradient."""
        with self.autocast():
            hidden_MH = self.states(packed)
            module = cast(nn.Linear, self.causal.get_output_embeddings())
            weight = module.weight if self.precision == "fp32" else module.weight.to(DTYPES[self.precision])
            target = packed.target_NT[packed.needed_NT].to(hidden_MH.device)
            head = replace(self.head, temperature=temperature)
            found = TokenLogprobs.apply(hidden_MH.to(weight.dtype), weight, module.bias, target, head, entropy)
        empty = torch.zeros(packed.needed_NT.shape, dtype=found[0].dtype)
        return Outputs(*(empty.masked_scatter(packed.needed_NT, x.cpu()) for x in found))

    def states(self, packed: Packed) -> Tensor:
        """(M, H): the hidden state that predicts each needed token, in row order."""
        if not self.packs:
            return self._plain_states(packed)
        ids, positions = (x[None].to(self.device_name) for x in (packed.token_ids_L, packed.position_ids_L))
        out = self._body()(input_ids=ids, position_ids=positions, use_cache=False, layout=packed.layout)
        return out.last_hidden_state[0, packed.row_NT[packed.needed_NT].to(self.device_name)]

    def _plain_states(self, packed: Packed) -> Tensor:
        """The same from one right-padded row per completion: with causal layers nothing real sees the padding."""
        rows: list[list[int]] = []
        prompts: list[int] = []
        for s in packed.layout:
            prompt, start = list(range(s.start, s.start + s.prompt_tokens)), s.start + s.prompt_tokens
            for n in s.completion_tokens:
                rows.append(prompt + list(range(start, start + n)))
                prompts.append(s.prompt_tokens)
                start += n
        width = max(map(len, rows))
        index = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        ids = torch.where(real.bool(), packed.token_ids_L[index], 0).to(self.device_name)
        hidden = self._body()(input_ids=ids, attention_mask=real.to(self.device_name), use_cache=False).last_hidden_state
        n, t = packed.needed_NT.nonzero(as_tuple=True)
        return hidden[n.to(hidden.device), (torch.tensor(prompts)[n] - 1 + t).to(hidden.device)]

    def _body(self) -> nn.Module:
        """The model without its head."""
        return self.causal.get_decoder() if hasattr(self.causal, "get_decoder") else self.causal.base_model

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(torch.device(self.device_name).type, DTYPES[self.precision])

    # --- reference ----------------------------------------------------------------------------------------------------------

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Inside, forward is the frozen reference and has no gradient: the adapter off, or a copy's weights for the policy's."""
        with torch.no_grad():
            if self.anchor is None and isinstance(self.model, PeftModel):
                with self.model.disable_adapter():
                    yield
                return
            copy = self.anchor or self._start_weights()
            if any(isinstance(p, DTensor) for _, p in self.trainable()):
                yield from self._overwritten(copy)
                return
            own = {name: p.data for name, p in self.trainable()}
            try:
                for name, p in self.trainable():
                    p.data = copy[name]
                yield
            finally:
                for name, p in self.trainable():
                    p.data = own[name]

    def _overwritten(self, copy: Mapping[str, Tensor]) -> Iterator[None]:
        """Sharded weights keep their memory (FSDP holds on to it), so the reference is copied in and the policy back."""
        own = {name: piece(p).clone() for name, p in self.trainable()}
        try:
            for name, p in self.trainable():
                fill(p, copy[name])
            yield
        finally:
            for name, p in self.trainable():
                piece(p).copy_(own[name])

    def sync_reference(self) -> None:
        """The reference becomes a copy of the policy as it is now (reference_model_freeze: false)."""
        self.anchor = {name: p.detach().clone() for name, p in self.trainable()}

    def _start_weights(self) -> dict[str, Tensor]:
        """Full fine-tuning: the second copy is read from the base only where something asks for the reference."""
        if self._start is None:
            base = load_base(self.base_path, torch.float32)
            self._start = {name: p.detach().to(self.device_name) for name, p in base.named_parameters()}
        return self._start

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
            return "full", {n: whole(p).clone() for n, p in self.causal.named_parameters()}, 1.0, base
        tensors = {}
        for name, p in self.trainable():
            module, _, kind = name.removeprefix("base_model.model.").partition(".lora_")
            tensors[f"{module}.lora_{kind[0]}"] = whole(p).clone()
        config = cast(LoraConfig, self.model.peft_config["default"])
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
            out[plain] = whole(p).clone()
            if f"{module}.lora_A" in tensors:
                delta = scaling * tensors[f"{module}.lora_B"].float() @ tensors[f"{module}.lora_A"].float()
                out[plain] = (whole(p).float() + delta).to(p.dtype)
        return out

    # --- files --------------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, bytes]:
        """The policy folder as bytes: a peft adapter, or a whole Hugging Face folder. Loads elsewhere without policyloop."""
        files = dict(self.extra)
        if self.anchor is not None:
            files["reference.safetensors"] = _pack(self.anchor)
        if isinstance(self.model, PeftModel):
            config = self.model.peft_config["default"].to_dict() | {"inference_mode": True}
            plain = {k: sorted(v) if isinstance(v, set) else v for k, v in config.items()}
            files["adapter_config.json"] = json.dumps(plain, indent=1, sort_keys=True, default=str).encode()
            files["adapter_model.safetensors"] = _pack(get_peft_model_state_dict(self.model, save_embedding_layers=False))
            note = {"name": self.base_path.name, "path": str(self.base_path), "digest": base_digest(self.base_path)}
            files[BASE_NOTE] = (json.dumps(note, indent=1) + "\n").encode()
        else:
            files["config.json"] = self.causal.config.to_json_string().encode()
            files["model.safetensors"] = _pack(dict(self.causal.named_parameters()))
        return files

    def load_files(self, files: Mapping[str, bytes]) -> None:
        """The inverse of `files`, bit for bit, into the parameters that the optimizer holds. Errors: BadInput (another model)."""
        if isinstance(self.model, PeftModel):
            own = get_peft_model_state_dict(self.model, save_embedding_layers=False)
            found = load_tensors(files["adapter_model.safetensors"])
        else:
            own, found = dict(self.causal.named_parameters()), load_tensors(files["model.safetensors"])
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in found.items()}:
            raise BadInput(
                "the saved policy has other weights than this model", "a run of the same model and adapter", "the checkpoint"
            )
        for name, value in found.items():
            fill(own[name], value)
        if "reference.safetensors" in files:
            self.anchor = {k: v.to(self.device_name) for k, v in load_tensors(files["reference.safetensors"]).items()}

    def save(self, folder: Path) -> None:
        """`files` on disk."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files().items():
            (folder / name).write_bytes(data)

    def restore(self, folder: Path) -> None:
        """The inverse of `save`."""
        self.load_files({p.name: p.read_bytes() for p in folder.glob("*.safetensors")})


def _pack(tensors: Mapping[str, Tensor]) -> bytes:
    return save_tensors({name: whole(t).cpu().contiguous() for name, t in tensors.items()}, metadata={"format": "pt"})


# --- loading ----------------------------------------------------------------------------------------------------------------


def load_policy(
    settings: ModelSettings, precision: str, device: str, seed: int, *, supervised: bool = False, micro_batch_tokens: int = 4096
) -> PolicyModel:
    """Base and adapter, ready to train. A base_model_path that is itself an adapter folder goes on with that adapter.

    supervised keeps the adapter's dropout; `micro_batch_tokens` decides gradient_checkpointing: auto.
    """
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    chosen = choose_precision(precision, device)
    path = resolve(settings.base_model_path)
    adapter = path if (path / "adapter_config.json").exists() else None
    path = path if adapter is None else base_of(adapter)
    base = load_base(path, torch.float32 if settings.lora is None else DTYPES[chosen])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = adapt(base, settings.lora, adapter)
    silence_dropout(model, adapters=not supervised)
    policy = PolicyModel(cast(Any, model).to(device), path, chosen, device)
    if policy.trainable_count() == 0:
        raise BadInput(f"no weight of {settings.base_model_path} would train", "target_modules that the model has", "model.lora")
    if adapter is not None and settings.lora is None:
        policy.sync_reference()  # the start is base + adapter, which no folder holds
    if settings.gradient_checkpointing is True or (
        settings.gradient_checkpointing == "auto" and short_of_memory(policy, micro_batch_tokens)
    ):
        base.gradient_checkpointing_enable({"use_reentrant": False})
    source = path if adapter is None else adapter
    if (path / "tokenizer_config.json").exists() or (source / "tokenizer_config.json").exists():
        policy.extra = load_renderer(source, settings.template).files()
    return policy.train()


def load_base(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Errors: BadInput with the library's own reason, in a sentence."""
    disable_progress_bar()
    try:
        found = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True, output_loading_info=True)
    except (OSError, ValueError, KeyError) as problem:
        reason = str(problem).strip().splitlines() or [type(problem).__name__]
        raise BadInput(
            f"{path} does not load ({reason[0]})", "a Hugging Face causal language model", "model.base_model_path"
        ) from problem
    model, info = cast(tuple[PreTrainedModel, dict[str, Any]], found)
    if missing := sorted(info["missing_keys"]):  # transformers would start them at random and only warn
        raise BadInput(
            f"{path} does not load ({len(missing)} weights are missing, {missing[0]} first)", "all weights", "the folder"
        )
    return model


def adapt(base: PreTrainedModel, lora: LoraSettings | None, adapter: Path | None) -> PreTrainedModel | PeftModel:
    """Put the adapter on: fresh, or the saved one made trainable again; full fine-tuning starts from base + saved adapter."""
    if lora is None:
        merged = base if adapter is None else PeftModel.from_pretrained(base, adapter).merge_and_unload()
        return cast(PreTrainedModel, merged.requires_grad_(True))
    if adapter is not None:
        model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    else:
        targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
        config = LoraConfig(
            r=lora.r, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=lora.dropout, task_type="CAUSAL_LM"
        )
        try:
            model = cast(PeftModel, get_peft_model(base, config))
        except ValueError as problem:
            names = {n.rsplit(".", 1)[-1] for n, m in base.named_modules() if isinstance(m, nn.Linear)} - {"lm_head"}
            raise BadInput(
                f"target_modules {targets} are not in this model",
                f"all-linear or some of {sorted(names)}",
                "model.lora.target_modules",
            ) from problem
    for p in model.parameters():
        if p.requires_grad:
            p.data = p.data.float()
    quicken(model)
    return model


def silence_dropout(model: nn.Module, adapters: bool = True) -> None:
    """p = 0 everywhere (two forwards of the same weights must agree) while train() stays on for gradient checkpointing. The
    config keeps what it says: it is saved with the model. `adapters` False leaves LoRA's own dropout on."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and (adapters or "lora_dropout" not in name):
            module.p = 0.0
        for key in ("dropout", "attention_dropout", "hidden_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, key, None), float):
                setattr(module, key, 0.0)


def short_of_memory(policy: PolicyModel, micro_batch_tokens: int) -> bool:
    """Whether a micro-batch's activations would not fit beside weights and optimizer, with a fifth to spare."""
    need = Need.of(policy.causal.config, policy.parameter_count(), policy.trainable_count(), policy.precision, micro_batch_tokens)
    return need.total > 0.8 * (available_bytes(policy.device_name) + need.weights)  # the weights are loaded by now


def choose_precision(asked: str, device: str) -> Precision:
    """`auto`: bf16 where the chip does it fast, else fp16 with scaler on CUDA, else fp32."""
    if asked in ("fp32", "bf16", "fp16"):
        return cast(Precision, asked)
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"
    fast = any(getattr(torch.cpu, name, lambda: False)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return "bf16" if fast else "fp32"


def read_head(causal: PreTrainedModel) -> Head:
    """How this family turns hidden states into logits. Errors: BadInput for an adapter on the head."""
    module = causal.get_output_embeddings()
    if not isinstance(module, nn.Linear):
        kind = type(module).__name__
        raise BadInput(
            f"the head of this model is a {kind}", "a plain linear head, not a target of LoRA", "model.lora.target_modules"
        )
    config = causal.config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return Head(scale=scale, cap=getattr(config, "final_logit_softcapping", None))


def packs_rows(config: Any) -> bool:
    """Whether every layer is full or sliding attention, so that completions can share their prompt's row."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    capped = getattr(text, "attn_logit_softcapping", None) is not None
    return kinds <= {"full_attention", "sliding_attention"} and not capped and text.model_type not in OTHER_LAYERS


@torch.no_grad()
def shares_exactly(policy: PolicyModel) -> bool:
    """Try it on eight tokens: sharing must give the hidden states that plain rows give (soft-capped attention, sinks, ALiBi do not
    pass). Leaves the attention as it was. Errors: BadInput where the model's logits are not those of our head."""
    causal, words = policy.causal, policy.causal.config.get_text_config().vocab_size
    ids = [1 + i % (words - 1) for i in (5, 3, 9, 2, 7, 11, 6, 4)]
    packed = pack([("g", ids[:3], ids[3:5]), ("g", ids[:3], ids[5:])], torch.ones(2, 3, dtype=torch.bool))
    before, training = causal.config._attn_implementation or "sdpa", policy.training
    near = 1e-4 if policy.precision == "fp32" else 0.05  # of a norm: single bf16 log-probs may differ by 0.5 and mean nothing
    policy.eval()
    policy.packs = False
    with policy.autocast():
        plain = policy.states(packed)
        row = torch.tensor([ids[:5]], device=policy.device_name)
        wanted = causal(input_ids=row, use_cache=False).logits[0]
        head = cast(nn.Linear, causal.get_output_embeddings())
        logits, _ = policy.head.logits(
            policy._body()(input_ids=row, use_cache=False).last_hidden_state[0], head.weight, head.bias
        )
        if not _distance(logits, wanted) < near:
            raise BadInput(
                f"the head of {causal.config.model_type} is unknown here: its logits are not W h", "another model family"
            )
        try:
            causal.set_attn_implementation(ATTENTION)
            policy.packs = True
            same = _distance(policy.states(packed), plain) < near
        except (ValueError, TypeError, RuntimeError):
            same = False
    causal.set_attn_implementation(before)
    policy.train(training)
    return same


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference, as a share of what is wanted."""
    return float((found.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(1e-30))


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
