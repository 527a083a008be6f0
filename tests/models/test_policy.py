"""Random tiny models of many families, compared with the plain Hugging Face forward: values and gradients."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from policyloop.errors import BadInput
from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.pack import Row, pack
from policyloop.models.policy import PolicyModel, digest, load_policy
from policyloop.types import Packed

V = 97
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {"head_dim": 12},
    "mistral": {"sliding_window": 6},
    "gemma3_text": {"sliding_window": 6, "head_dim": 12, "final_logit_softcapping": 8.0},
    "phi3": {},
    "smollm3": {},
    "olmo2": {},
    "granite": {"logits_scaling": 3.0},
    "cohere": {"logit_scale": 0.25},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "gemma2": {"head_dim": 12, "sliding_window": 6},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {"alibi": True, "new_decoder_architecture": False},
    "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
}
OWN_ROWS = {"gemma2", "bloom", "falcon", "lfm2"}  # soft-capped attention; ALiBi; convolutions


def family(name: str, seed: int = 0, **more: Any) -> PreTrainedModel:
    sizes = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(name.split("-")[0], **{**sizes, **heads, **FAMILIES.get(name, {}), **more})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for p in model.parameters():  # fresh weights are so small that every mistake would be too
        torch.nn.init.normal_(p, std=0.2) if p.dim() > 1 else torch.nn.init.uniform_(p, 0.5, 1.5)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    family("llama").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def rows_of(*groups: tuple[int, Sequence[int]]) -> list[Row]:
    """(prompt length, completion lengths) -> rows with random tokens."""
    g = torch.Generator().manual_seed(7)
    draw = lambda n: torch.randint(3, V, (n,), generator=g).tolist()  # noqa: E731
    return [(i, prompt, draw(n)) for i, (p, ns) in enumerate(groups) for prompt in [draw(p)] for n in ns]


def packed_of(rows: Sequence[Row], needed: Tensor | None = None) -> Packed:
    width = max(len(completion) for _, _, completion in rows)
    return pack(rows, torch.ones(len(rows), width, dtype=torch.bool) if needed is None else needed)


def plain_logits(model: PreTrainedModel, rows: Sequence[Row]) -> list[Tensor]:
    """The definition: one unpadded row at a time through the model's own forward."""
    out = []
    for _, prompt, completion in rows:
        logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0]
        out.append(logits[len(prompt) - 1 : -1] if completion else logits[:0])
    return out


def full(model: PreTrainedModel, precision: Any = "fp32") -> PolicyModel:
    return PolicyModel(model.requires_grad_(True), Path("unused"), precision, "cpu").train()


ROWS = rows_of((11, (5, 9, 1)), (4, (3,)), (8, (0, 7)))


@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_gradients_are_those_of_plain_rows(name: str) -> None:
    temperature = 0.7
    reference, policy = family(name).train(), full(family(name))
    for p in policy.modules():
        if isinstance(p, torch.nn.Dropout):
            p.p = 0.0
    reference.eval()
    assert policy.packs == (name not in OWN_ROWS)
    logp, ent, weight = [], [], []
    for (_, _, completion), logits in zip(ROWS, plain_logits(reference, ROWS), strict=True):
        scaled = (logits / temperature).log_softmax(-1)
        logp.append(scaled.gather(1, torch.tensor(completion, dtype=torch.int64)[:, None])[:, 0])
        ent.append(-(scaled.exp() * scaled).sum(-1))
        weight.append(torch.linspace(-1, 1, len(completion)) + 0.3)
    sum((w * (a + 0.5 * e)).sum() for w, a, e in zip(weight, logp, ent, strict=True)).backward()

    packed = packed_of(ROWS)
    out = policy(packed, temperature)
    w_NT = torch.zeros(packed.needed_NT.shape)
    for n, (w, a, e) in enumerate(zip(weight, logp, ent, strict=True)):
        w_NT[n, : len(w)] = w
        torch.testing.assert_close(out.logprobs_NT[n, : len(w)], a, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(out.entropy_NT[n, : len(w)], e, atol=1e-5, rtol=1e-5)
        assert not out.logprobs_NT[n, len(w) :].any() and not out.entropy_NT[n, len(w) :].any()
    (w_NT * (out.logprobs_NT + 0.5 * out.entropy_NT)).sum().backward()
    wanted = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    found = {n: p.grad for n, p in policy.causal.named_parameters() if p.grad is not None}
    assert wanted.keys() == found.keys()
    scale = max(float(g.abs().max()) for g in wanted.values())
    for n, g in wanted.items():
        assert float((g - found[n]).abs().max()) < 1e-5 * scale, n


def test_rows_of_their_own_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        full(family("lfm2"))
    assert [r.message for r in caplog.records] == ["lfm2 cannot share prompts: every completion takes a row of its own"]


def test_only_needed_tokens_count_and_nothing_needed_still_has_a_graph() -> None:
    policy = full(family("llama"))
    whole = policy(packed_of(ROWS), 1.0)
    needed = torch.zeros(len(ROWS), 9, dtype=torch.bool)
    needed[1, 2:4] = needed[5, 6] = True
    some = policy(packed_of(ROWS, needed), 1.0)
    torch.testing.assert_close(some.logprobs_NT, torch.where(needed, whole.logprobs_NT, 0.0))
    none = policy(packed_of(ROWS, torch.zeros_like(needed)), 1.0)
    assert not none.logprobs_NT.any()
    none.logprobs_NT.sum().backward()
    assert all(not p.grad.any() for p in policy.parameters() if p.grad is not None)


def test_a_split_batch_has_the_same_gradient_in_float64() -> None:
    policy = full(family("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).double())  # Llama's norms stay float32 inside
    gradients = []
    for parts in ([range(6)], [[0, 1, 2], [3, 4, 5]], [[0], [1, 3], [2, 4], [5]]):
        policy.zero_grad()
        for part in parts:
            out = policy(packed_of([ROWS[i] for i in part]), 1.0)
            (out.logprobs_NT.sum() + out.entropy_NT.sum()).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    assert gradients[0].dtype == torch.float64
    for g in gradients[1:]:
        assert float((g - gradients[0]).abs().max() / gradients[0].abs().max()) < 1e-12


def test_c10_absolute_positions_and_padding_leave_log_probs_alone() -> None:
    model = family("gpt2").eval()
    rows: list[Row] = [("a", [5, 6, 7], [8]), ("b", [9, 10, 11, 12, 13], [14, 15])]
    alone = [lg.log_softmax(-1) for lg in plain_logits(model, rows)]
    policy = full(model)
    policy.eval()
    for packs in (True, False):
        policy.packs = packs
        policy.causal.set_attn_implementation("policyloop_shared" if packs else "sdpa")
        found = policy(packed_of(rows), 1.0).logprobs_NT
        torch.testing.assert_close(found[0, 0], alone[0][0, 8], atol=1e-5, rtol=0)
        torch.testing.assert_close(found[1], alone[1][[0, 1], [14, 15]], atol=1e-5, rtol=0)


def test_c14_sampled_ids_are_scored_as_they_are() -> None:
    out = full(family("llama"))(packed_of([("g", [1], [55, 94])]), 1.0)
    assert out.logprobs_NT.shape == (1, 2) and bool((out.logprobs_NT < 0).all())


def test_a_head_that_is_not_ours_is_refused() -> None:
    model = family("llama")
    model.lm_head.register_forward_hook(lambda module, given, out: 2 * out)  # type: ignore[union-attr]
    with pytest.raises(BadInput, match="the head of llama is unknown"):
        full(model)


def lora(folder: Path, dropout: float = 0.0, **more: Any) -> PolicyModel:
    adapter = LoraSettings(r=4, alpha=8, target_modules="all-linear", dropout=dropout)
    return load_policy(ModelSettings(base_model_path=str(folder), lora=adapter, **more), "fp32", "cpu", seed=0)


def shake(policy: PolicyModel) -> PolicyModel:
    torch.manual_seed(3)
    with torch.no_grad():
        for _, p in policy.trainable():
            p.add_(torch.randn_like(p) * 0.1)
    return policy


def test_e02_dropout_is_off_in_two_passes_of_the_same_weights(tmp_path: Path) -> None:
    family("llama", attention_dropout=0.5).save_pretrained(tmp_path)
    policy = shake(lora(tmp_path, dropout=0.5))
    assert policy.training
    first, second = (policy(packed_of(ROWS), 1.0).logprobs_NT for _ in range(2))
    assert torch.equal(first, second)
    assert json.loads(full_files(tmp_path)["config.json"])["attention_dropout"] == 0.5
    on = load_policy(
        ModelSettings(base_model_path=str(tmp_path), lora=LoraSettings(dropout=0.5)), "fp32", "cpu", 0, supervised=True
    )
    shake(on)
    assert not torch.equal(on(packed_of(ROWS), 1.0).logprobs_NT, on(packed_of(ROWS), 1.0).logprobs_NT)


def full_files(folder: Path) -> dict[str, bytes]:
    return load_policy(ModelSettings(base_model_path=str(folder), lora=None), "fp32", "cpu", 0).files()


def test_the_reference_of_lora_is_the_base_and_of_full_fine_tuning_its_start(folder: Path) -> None:
    base = full(AutoModelForCausalLM.from_pretrained(folder))(packed_of(ROWS), 1.0).logprobs_NT
    whole = load_policy(ModelSettings(base_model_path=str(folder), lora=None), "fp32", "cpu", 0)
    for policy in (shake(lora(folder)), shake(whole)):
        now = policy(packed_of(ROWS), 1.0).logprobs_NT
        with policy.reference():
            start = policy(packed_of(ROWS), 1.0).logprobs_NT
        torch.testing.assert_close(start, base)
        assert not start.requires_grad and not torch.allclose(now, base, atol=1e-2)
        assert torch.equal(policy(packed_of(ROWS), 1.0).logprobs_NT, now)
        policy.sync_reference()
        shake(policy)
        with policy.reference():
            torch.testing.assert_close(policy(packed_of(ROWS), 1.0).logprobs_NT, now)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_saved_and_restored_bit_for_bit(folder: Path, tmp_path: Path, kind: str) -> None:
    make = (
        (lambda: lora(folder))
        if kind == "lora"
        else lambda: load_policy(ModelSettings(base_model_path=str(folder), lora=None), "fp32", "cpu", 0)
    )
    policy, fresh = shake(make()), make()
    policy.sync_reference()
    shake(policy)
    policy.save(tmp_path / "saved")
    held = [p for _, p in fresh.trainable()]
    fresh.restore(tmp_path / "saved")
    assert all(p is q for p, (_, q) in zip(held, fresh.trainable(), strict=True)), "the optimizer holds these"
    assert digest(fresh.weights_tensors()[1]) == digest(policy.weights_tensors()[1])
    assert all(p.dtype == torch.float32 for p in held)
    with policy.reference(), fresh.reference():
        assert torch.equal(fresh(packed_of(ROWS), 1.0).logprobs_NT, policy(packed_of(ROWS), 1.0).logprobs_NT)


def test_a_saved_policy_loads_without_us(folder: Path, tmp_path: Path) -> None:
    from peft import PeftModel

    policy = shake(lora(folder))
    policy.save(tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), tmp_path / "adapter")
    ours = policy(packed_of(ROWS), 1.0).logprobs_NT
    torch.testing.assert_close(full(theirs.merge_and_unload())(packed_of(ROWS), 1.0).logprobs_NT, ours, atol=1e-5, rtol=0)
    merged = AutoModelForCausalLM.from_pretrained(folder)
    merged.load_state_dict(policy.merged_state())
    torch.testing.assert_close(full(merged)(packed_of(ROWS), 1.0).logprobs_NT, ours, atol=1e-5, rtol=0)


def test_f13_a_saved_adapter_goes_on_training(folder: Path, tmp_path: Path) -> None:
    policy = shake(lora(folder))
    policy.save(tmp_path / "adapter")
    again = lora(tmp_path / "adapter")
    assert again.trainable_count() == policy.trainable_count() > 0
    assert digest(again.weights_tensors()[1]) == digest(policy.weights_tensors()[1])
    again(packed_of(ROWS), 1.0).logprobs_NT.sum().backward()
    torch.optim.SGD([p for _, p in again.trainable()], lr=0.1).step()
    assert digest(again.weights_tensors()[1]) != digest(policy.weights_tensors()[1])
    whole = load_policy(ModelSettings(base_model_path=str(tmp_path / "adapter"), lora=None), "fp32", "cpu", 0)
    ours = policy(packed_of(ROWS), 1.0).logprobs_NT
    torch.testing.assert_close(whole(packed_of(ROWS), 1.0).logprobs_NT, ours, atol=1e-5, rtol=0)


def test_f02_merged_weights_keep_the_base_dtype_and_are_added_in_float32(folder: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(tmp_path / "bf16")
    policy = shake(load_policy(ModelSettings(base_model_path=str(tmp_path / "bf16")), "bf16", "cpu", 0))
    assert {p.dtype for _, p in policy.trainable()} == {torch.float32}
    kind, tensors, scaling, _ = policy.weights_tensors()
    merged, name = policy.merged_state(), "model.layers.0.self_attn.q_proj"
    assert kind == "lora" and {t.dtype for t in merged.values()} == {torch.bfloat16}
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16", dtype=torch.float32).get_parameter(f"{name}.weight")
    wanted = base + scaling * tensors[f"{name}.lora_B"] @ tensors[f"{name}.lora_A"]
    assert torch.equal(merged[f"{name}.weight"], wanted.to(torch.bfloat16))


def test_bf16_under_autocast_is_near_and_trains(folder: Path) -> None:
    settings = ModelSettings(base_model_path=str(folder))
    exact, rough = (shake(load_policy(settings, p, "cpu", 0)) for p in ("fp32", "bf16"))
    a, b = (p(packed_of(ROWS), 1.0) for p in (exact, rough))
    assert b.logprobs_NT.dtype == torch.float32 and bool((b.logprobs_NT <= 0).all())
    assert bool(((a.logprobs_NT - b.logprobs_NT).abs() < 0.3).all())
    b.logprobs_NT.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for _, p in rough.trainable())


def test_gradient_checkpointing_changes_memory_not_gradients(folder: Path) -> None:
    found = []
    for on in (False, True):
        policy = shake(lora(folder, gradient_checkpointing=on))
        assert policy.causal.is_gradient_checkpointing == on
        policy(packed_of(ROWS), 1.0).logprobs_NT.sum().backward()
        found.append(torch.cat([p.grad.flatten() for _, p in policy.trainable() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1])


def test_what_cannot_train_is_said(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"target_modules \['nope'\] are not in this model: allowed is all-linear or some of"):
        load_policy(ModelSettings(base_model_path=str(folder), lora=LoraSettings(target_modules=("nope",))), "fp32", "cpu", 0)
    with pytest.raises(BadInput, match="not a target of LoRA"):
        load_policy(ModelSettings(base_model_path=str(folder), lora=LoraSettings(target_modules=("lm_head",))), "fp32", "cpu", 0)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadInput, match="does not load"):
        lora(folder)


def test_digests_tell_names_shapes_and_bytes_apart() -> None:
    a, b = torch.arange(6.0), torch.arange(6.0)
    assert digest({"x": a, "y": b}) == digest({"y": b.clone(), "x": a})
    different = [{"x": a}, {"y": a}, {"x": a.view(2, 3)}, {"x": a.double()}, {"x": a + 1e-7}]
    assert len({digest(t) for t in different}) == len(different)
