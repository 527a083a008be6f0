from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from policyloop.models.tiny import FILLERS, WORDS, make_tiny


def test_the_folder_is_what_it_says(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "tiny")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert len(WORDS) == 23 and model.config.vocab_size == 23
    assert 220_000 < sum(p.numel() for p in model.parameters()) < 235_000
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    assert model.generation_config.eos_token_id == WORDS.index("<eos>")


def test_digits_and_signs_are_tokens_and_spaces_only_separate(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_tiny(tmp_path))
    text = "check 9-3+2-6;so 9-3+2-6=2#2"
    ids = tokenizer(text)["input_ids"]
    assert [WORDS[i] for i in ids] == ["<bos>", "check", *"9-3+2-6;", "so", *"9-3+2-6=2#2"]
    assert tokenizer.decode(ids[1:]) == text
    spaced = tokenizer("so so9\n 9x", add_special_tokens=False)["input_ids"]
    assert [WORDS[i] for i in spaced] == ["so", "so", "9", "9", "<unk>"]
    assert not tokenizer.chat_template
    assert all(tokenizer.convert_tokens_to_ids(w) == WORDS.index(w) for w in FILLERS)


def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_state(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    files = [
        (make_tiny(tmp_path / name, seed) / "model.safetensors").read_bytes() for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert files[0] == files[1] != files[2]
    assert torch.equal(before, torch.get_rng_state())
