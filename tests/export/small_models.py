"""Small models with a byte-level BPE (GGUF can hold it), and adapters far from their base."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from policyloop.models import LoraSettings, ModelSettings
from policyloop.models.from_gguf import CUTS
from policyloop.models.policy import load_policy

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = ["What is 7 + 5?", "the cat sat on the mat", "there are 12 eggs here", "小明有5个苹果", "1 2 3 4 5 6 7 8 9 0"] * 4


def tokenizer(cut: str) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE(ignore_merges=cut == "llama-bpe"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(list(CUTS[cut]))
    inner.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator(TEXT, trainer)
    inner.add_tokens([AddedToken("<think>", normalized=False)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = CHATML
    return made


def make_model(folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32, tied: bool = True) -> Path:
    """A model whose answers are far from uniform, and not all alike."""
    words = tokenizer({"llama": "smollm", "qwen2": "qwen2"}[family])
    sizes = {
        "vocab_size": len(words) + 5,  # rows that no token uses, as Qwen has them
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    model = (LlamaForCausalLM(LlamaConfig(**sizes)) if family == "llama" else Qwen2ForCausalLM(Qwen2Config(**sizes))).to(dtype)
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.12)
        elif family == "qwen2":
            p.data += torch.randn_like(p) * 0.1
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def make_adapter(folder: Path, base: Path) -> Path:
    settings = ModelSettings(base_model_path=str(base), lora=LoraSettings(r=4, target_modules="all-linear"))
    policy = load_policy(settings, "fp32", "cpu", seed=0)
    for i, (_, parameter) in enumerate(policy.trainable()):
        torch.nn.init.normal_(parameter, std=0.15, generator=torch.Generator().manual_seed(i))
    policy.save(folder)
    return folder
