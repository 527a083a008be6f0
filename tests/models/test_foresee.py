"""What a run will need, from a model's config alone: counts against the known sizes of SmolLM2 and against a model that was loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaConfig

from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.foresee import kv_bytes, local, memory_line, need_of
from policyloop.models.policy import load_policy
from policyloop.models.tiny import make_tiny

ALL = LoraSettings(target_modules="all-linear")
SMOLLM2 = LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
    tie_word_embeddings=True,
)  # fmt: skip


def test_sizes_of_smollm2_without_its_weights(tmp_path: Path) -> None:
    """134,515,008 parameters (model card), 4,884,480 of an all-linear adapter of rank 16."""
    SMOLLM2.save_pretrained(tmp_path)
    need = need_of(tmp_path, ALL, "fp32", 1)
    assert need.weights == 4 * (134_515_008 + 4_884_480) and need.training == 12 * 4_884_480
    full = need_of(tmp_path, None, "bf16", 1)
    assert full.weights == 4 * 134_515_008 and full.training == 12 * 134_515_008
    assert kv_bytes(SMOLLM2, 4) == 2 * 30 * 3 * 64 * 4


@pytest.mark.parametrize("lora", [ALL, LoraSettings(), None])
def test_counts_are_those_of_the_loaded_model(tmp_path: Path, lora: LoraSettings | None) -> None:
    folder = make_tiny(tmp_path)
    policy = load_policy(ModelSettings(base_model_path=str(folder), lora=lora), "fp32", "cpu", 0)
    need = need_of(folder, lora, "fp32", 1)
    assert need.training == 12 * policy.trainable_count() and need.weights == 4 * policy.parameter_count()


def test_only_what_is_here_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path))
    assert local("smollm2-135m-instruct") is None and local("no-owner/no-model") is None
    assert local(str(make_tiny(tmp_path / "m"))) == tmp_path / "m"
    away = ModelSettings(base_model_path="smollm2-135m-instruct")
    assert "not on this machine yet" in memory_line(away, "fp32", "cpu", 4096, 64, 32, False)


def test_a_second_copy_is_counted_for_full_fine_tuning_only(tmp_path: Path) -> None:
    path = str(make_tiny(tmp_path))
    full, lora = ModelSettings(base_model_path=path, lora=None), ModelSettings(base_model_path=path)
    assert "reference" in memory_line(full, "fp32", "cpu", 64, 8, 32, True)
    assert "reference" not in memory_line(full, "fp32", "cpu", 64, 8, 32, False)
    assert "reference" not in memory_line(lora, "fp32", "cpu", 64, 8, 32, True)
