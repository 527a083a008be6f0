"""GGUF written and read back: weights, tokenizer, template and stops are those of the model. A MODEL may be the file or its folder."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from small_models import TEXT, make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from policyloop.errors import BadInput
from policyloop.export import ExportSettings, ParitySettings
from policyloop.export.bundle import export
from policyloop.export.source import Source
from policyloop.export.to_gguf import check, go_template, permuted
from policyloop.models.catalogue import resolve
from policyloop.models.from_gguf import _unpermute
from policyloop.models.template import load_renderer
from policyloop.models.tiny import make_tiny
from policyloop.types import Message

FAST = ParitySettings(prompts=3, max_new_tokens=8)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICYLOOP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen2", False)])
def test_what_is_read_back_is_what_was_written(family: str, tied: bool, tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", family, tied=tied)
    made = export(str(model), tmp_path / "out", ExportSettings(format="gguf", parity=FAST))
    assert made.promotable and made.distance.logprob_max < 1e-5 and made.manifest["kind"] == "gguf"
    back = resolve(tmp_path / "out" / "model.gguf")
    assert back == resolve(tmp_path / "out")
    ids = torch.tensor([[5, 90, 17, 200, 33, 8]])
    with torch.no_grad():
        a, b = (AutoModelForCausalLM.from_pretrained(p)(ids).logits for p in (model, back))
    assert torch.allclose(a, b, atol=1e-5)
    ours, theirs = (AutoTokenizer.from_pretrained(p) for p in (model, back))
    for text in (*TEXT[:5], "don't  12345\n\n x <think>y<|im_end|>"):
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert load_renderer(back).stop_ids == load_renderer(model).stop_ids == (2,)
    assert ours.chat_template == theirs.chat_template


def test_the_file_says_what_llama_cpp_asks_for(tmp_path: Path) -> None:
    """Names and values of the GGUF specification, read with the reference reader."""
    model = make_model(tmp_path / "model", "llama")
    made = export(str(model), tmp_path / "out", ExportSettings(format="gguf", gguf_type="q8_0", parity=FAST))
    reader = gguf.GGUFReader(made.folder / "model.gguf")
    meta = {name: field.contents() for name, field in reader.fields.items()}
    assert (
        meta["general.architecture"] == "llama" and meta["llama.block_count"] == 2 and meta["llama.attention.head_count_kv"] == 2
    )
    assert meta["tokenizer.ggml.model"] == "gpt2" and meta["tokenizer.ggml.pre"] == "smollm"
    assert meta["tokenizer.ggml.eos_token_id"] == 2 and meta["tokenizer.ggml.add_bos_token"] is False
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    assert kinds["blk.0.attn_q.weight"] == "Q8_0" and kinds["blk.0.attn_norm.weight"] == "F32"
    names = meta["tokenizer.ggml.tokens"]
    types = dict(zip(names, meta["tokenizer.ggml.token_type"], strict=True))
    assert types["<|im_end|>"] == 3 and types["<think>"] == 4 and types[names[-1]] == 5 and names[-1].startswith("[PAD")


def test_llama_cpp_permutes_as_its_converter_does() -> None:
    """Two heads of four rows: the converter's own formula gives rows 0 2 1 3 of each head."""
    x = torch.arange(8.0)[:, None]
    assert permuted(x, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert torch.equal(_unpermute(permuted(x, 2), 2), x)


def test_the_modelfile_has_template_and_stops(llama: Path) -> None:
    source = Source.of(llama)
    text = go_template(source)
    assert text.endswith("{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}")
    plain = text.replace("{{ if .System }}", "").partition("{{ else }}")[0] + "{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n"
    said = plain.replace("{{ .System }}", "be kind").replace("{{ .Prompt }}", "hi")
    assert said == source.renderer.text([Message("system", "be kind"), Message("user", "hi")])


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "falcon"}, "family falcon"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "sliding"),
    ],
)
def test_what_is_not_written_is_refused_before_anything_is(config: dict, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        check(config)


def test_a_tokenizer_without_a_name_in_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="WordLevel"):
        export(str(make_tiny(tmp_path / "tiny")), tmp_path / "out", ExportSettings(format="gguf"))
    assert not (tmp_path / "out").exists()
