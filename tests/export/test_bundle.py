"""Every format on small models: loads again, says the same, and what is wrong is caught."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from small_models import make_adapter, make_model
from transformers import AutoModelForCausalLM

from policyloop.errors import BadInput, Conflict, StaleVersion
from policyloop.evaluation.distance import Answer, Distance
from policyloop.export import ExportSettings, ParitySettings
from policyloop.export import merge as merging
from policyloop.export.bundle import MANIFEST, Origin, beyond, export, recheck, verify
from policyloop.types import Prompt

FAST = ParitySettings(prompts=4, max_new_tokens=12)


def settings(format: str, **more: str) -> ExportSettings:
    return ExportSettings(format=format, parity=FAST, **more)  # type: ignore[arg-type]


def test_a_merged_adapter_has_the_logits_of_peft(adapter: Path, llama: Path, tmp_path: Path) -> None:
    made = export(str(adapter), tmp_path / "out", settings("merged"))
    assert made.promotable and made.distance.greedy_same == 1 and made.distance.logprob_max < 1e-5
    ids = torch.tensor([[5, 90, 17, 200, 33, 8]])
    with torch.no_grad():
        want = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), adapter)(ids).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert torch.allclose(found(ids).logits, want, atol=1e-4)
    assert found.lm_head.weight.data_ptr() == found.model.embed_tokens.weight.data_ptr()
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    assert not list((tmp_path / "out").glob("*.bin"))


def test_merging_keeps_the_type_of_the_base_and_what_is_not_adapted_bit_for_bit(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", dtype=torch.bfloat16)
    made = export(str(make_adapter(tmp_path / "a", base)), tmp_path / "out", settings("merged"))
    before, after = load_file(base / "model.safetensors"), load_file(made.folder / "model.safetensors")
    assert {t.dtype for t in after.values()} == {torch.bfloat16} and before.keys() == after.keys()
    changed = {name.rsplit(".", 2)[-2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_float32_keeps_what_rounding_to_the_base_would_eat(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", dtype=torch.bfloat16)
    adapter = make_adapter(tmp_path / "a", base)
    rounded = export(str(adapter), tmp_path / "r", settings("merged"))
    exact = export(str(adapter), tmp_path / "e", settings("merged", dtype="float32"))
    assert exact.distance.logprob_max < 1e-4 < rounded.distance.logprob_max
    assert {t.dtype for t in load_file(tmp_path / "e" / "model.safetensors").values()} == {torch.float32}


def test_an_adapter_bundle_stays_an_adapter_and_knows_its_base(adapter: Path, llama: Path, tmp_path: Path) -> None:
    made = export(str(adapter), tmp_path / "out", settings("adapter"))
    assert made.promotable and made.manifest["kind"] == "lora" and made.manifest["base"]["path"] == str(llama)
    assert (
        load_file(tmp_path / "out" / "adapter_model.safetensors").keys()
        == load_file(adapter / "adapter_model.safetensors").keys()
    )
    with pytest.raises(BadInput, match="whole model"):
        export(str(llama), tmp_path / "no", settings("adapter"))
    assert not (tmp_path / "no").exists()


def test_an_adapter_of_other_weights_is_refused(llama: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(llama, base)
    adapter = make_adapter(tmp_path / "a", base)
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"] += 0.5
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StaleVersion, match="trained on other weights"):
        export(str(adapter), tmp_path / "out", settings("merged"))


def test_int8_keeps_the_tied_head_and_says_how_far_it_is(llama: Path, tmp_path: Path) -> None:
    made = export(str(llama), tmp_path / "out", settings("int8"))
    assert made.manifest["kind"] == "quantised" and made.manifest["base"]["bits"] == 8
    assert 1e-4 < made.distance.logprob_mean < 0.1 and made.distance.kl < 0.01
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert found.lm_head.weight.data_ptr() == found.model.embed_tokens.weight.data_ptr()
    assert type(found.model.layers[0].mlp.up_proj.weight.data).__name__ == "Int8Tensor"
    with pytest.raises(BadInput, match="quantised already"):
        export(str(tmp_path / "out"), tmp_path / "twice", settings("gguf"))


def test_int4_is_refused_by_parity_and_left_to_be_looked_at(llama: Path, tmp_path: Path) -> None:
    made = export(str(llama), tmp_path / "out", settings("int4"))
    assert not made.promotable and made.distance.kl > 0.05 and "NOT PROMOTABLE" in made.lines()[-1]
    tree = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert tree["checks"]["parity"]["passed"] is False and "KL" in tree["checks"]["parity"]["reasons"][0]


def test_a_wrong_merge_is_caught(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge without the scaling alpha / r, the mistake that is easiest to make."""
    right = merging.merged_shards

    def wrong(source, exact=False):  # type: ignore[no-untyped-def]
        return right(replace(source, adapter=replace(source.adapter, scaling=1.0)))

    monkeypatch.setattr(merging, "merged_shards", wrong)
    made = export(str(adapter), tmp_path / "out", settings("merged"))
    assert not made.promotable and made.distance.greedy_same < 0.5


def test_the_bundle_says_what_it_is_and_can_be_asked_again(llama: Path, tmp_path: Path) -> None:
    prompts = [Prompt.make("mine", f"{i} + {i} =") for i in range(6)]
    origin = Origin(prompts, {"system": "s"}, {"temperature": 0.0}, {"run": "r", "step": 3})
    made = export(str(llama), tmp_path / "out", settings("merged"), origin)
    tree = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert (
        tree["serving"]["parser"] == {"system": "s"}
        and tree["serving"]["eos_ids"] == [2]
        and "im_start" in tree["serving"]["template"]
    )
    assert {f["role"] for f in tree["files"]} >= {"weights", "tokenizer", "config", "generation_config", "data"}
    golden = [json.loads(line) for line in (tmp_path / "out" / tree["serving"]["golden"]).read_text().splitlines()]
    assert [g["prompt_id"] for g in golden] == [p.id for p in prompts[:4]] * 2 and tree["lineage"]["step"] == 3
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()).keys() == {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }
    again, reasons = recheck(tmp_path / "out")
    assert again == made.distance and not reasons and verify(tmp_path / "out") == []
    weights = tmp_path / "out" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert verify(tmp_path / "out") == ["model.safetensors was changed"]


def test_nothing_is_replaced_by_accident(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(Conflict, match="exists already"):
        export(str(llama), tmp_path / "mine", settings("merged"))
    with pytest.raises(BadInput, match="no bundle"):
        export(str(llama), tmp_path / "mine", settings("merged"), force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("change", "word"),
    [({"kl": 0.06}, "KL"), ({"kl": float("nan")}, "KL"), ({"logprob_mean": 0.2}, "log-probs"), ({"greedy_same": 0.4}, "greedy")],
)
def test_each_threshold_is_a_reason_of_its_own(change: dict[str, float], word: str) -> None:
    near = Distance(prompts=10, tokens=100, greedy_same=0.5, logprob_mean=0.1, logprob_max=3.0, kl=0.05)
    assert beyond(near, ParitySettings()) == ()
    (reason,) = beyond(replace(near, **change), ParitySettings())
    assert word in reason


def test_an_answer_survives_its_file() -> None:
    answer = Answer("p", True, (1, 2), (3,), (-0.5,), "x")
    assert Answer.of(json.loads(json.dumps({s: getattr(answer, s) for s in Answer.__slots__}))) == answer
