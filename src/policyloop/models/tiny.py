"""The tiny model: 0.23 M parameters and 23 words built in code, for tests, CI and offline users. No download.

Digits and signs are one token each; the four filler words are whole tokens; spaces only separate. No chat template.

Example:
    >>> make_tiny(Path("/tmp/tiny"))  # a Hugging Face folder, untrained: "check 9-3=6;so 6#6" is <bos> check 9 - 3 = 6 ; so 6 # 6
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

FILLERS = ("check", "so", "the", "is")
WORDS = ("<pad>", "<bos>", "<eos>", "<unk>", *"0123456789", *"+-=;#", *FILLERS)
CONTEXT = 256


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Word-level; `<bos>` is added once by default; a filler word decodes with the space that separates it from what follows."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "removed"), pre_tokenizers.Split(Regex(r"[0-9+\-=;#]"), "isolated")]
    )
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", WORDS.index("<bos>"))]
    )
    inner.decoder = decoders.Sequence([*(decoders.Replace(word, word + " ") for word in FILLERS), decoders.Fuse()])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def make_tiny(folder: Path | str, seed: int = 0) -> Path:
    """An untrained LlamaForCausalLM (2 layers, width 96, 4 heads, MLP 256, untied, fp32) with its tokenizer, in `folder`."""
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        pad_token_id=WORDS.index("<pad>"),
        bos_token_id=WORDS.index("<bos>"),
        eos_token_id=WORDS.index("<eos>"),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    disable_progress_bar()  # a bar for one small file breaks plain output
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path
