from pathlib import Path

import pytest
from transformers import LlamaConfig

from policyloop.models import LoraSettings, ModelSettings, policy
from policyloop.models.memory import Need, available_bytes
from policyloop.models.tiny import make_tiny

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
)
PARAMETERS, LORA = 139_399_488, 4_884_480


def test_the_estimate_is_near_what_was_measured() -> None:
    need = Need.of(SMOLLM2, PARAMETERS, LORA, "fp32", 484)
    assert need.activations + need.head == pytest.approx(913e6, rel=0.25)
    assert need.weights == pytest.approx(558e6, rel=0.01) and need.training == 12 * LORA
    assert need.total == need.weights + need.training + need.activations + need.head


def test_checkpointing_and_bf16_need_less() -> None:
    plain = Need.of(SMOLLM2, PARAMETERS, LORA, "fp32", 4096)
    assert Need.of(SMOLLM2, PARAMETERS, LORA, "fp32", 4096, checkpointing=True).activations < plain.activations / 8
    assert Need.of(SMOLLM2, PARAMETERS, LORA, "bf16", 4096).activations == plain.activations / 2


@pytest.mark.parametrize(("free", "on"), [(10**12, False), (10**6, True)])
def test_auto_checkpoints_where_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, on: bool) -> None:
    monkeypatch.setattr(policy, "available_bytes", lambda device: free)
    settings = ModelSettings(base_model_path=str(make_tiny(tmp_path)), lora=LoraSettings())
    assert policy.load_policy(settings, "fp32", "cpu", 0).causal.is_gradient_checkpointing == on


def test_there_is_memory_here() -> None:
    assert 10**6 < available_bytes("cpu") < 10**15
