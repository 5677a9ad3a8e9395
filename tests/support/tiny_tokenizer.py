"""A small byte-level BPE with chat markup, trained on a few sentences. Knows no model."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
THINKING = ("<think>", "</think>")  # the last two ids of 512; kept when special tokens are skipped
VOCAB = 512

CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""

_CORPUS = (
    "The quick brown fox jumps over the lazy dog while the five boxing wizards jump quickly.",
    "A page holds the keys and values of some tokens; a request holds pages until it is done.",
    "What is the capital of France? Answer in one sentence. The capital of France is Paris.",
    "def add(first, second):\n    return first + second\n\nprint(add(1, 2))\n",
    "Numbers 0 1 2 3 4 5 6 7 8 9 10 11 12 123 1234, and punctuation: (a) [b] {c} <d> 'e' \"f\"!",
    "今天天气很好,我们去长城看看吧。中国的首都是北京,法国的首都是巴黎。",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Ça va très bien, merci. Größe, Straße.",
    "you are a helpful assistant that answers questions about the world in short sentences",
)


@lru_cache(maxsize=1)
def tiny_tokenizer_json() -> str:
    """The content of tokenizer.json; the same on every run."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(THINKING),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    missing = VOCAB - len(THINKING) - tokenizer.get_vocab_size()
    assert missing == 0, f"the corpus is {missing} merges short"
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in THINKING])
    return tokenizer.to_str(pretty=True)


def write_tokenizer(directory: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    (directory / "tokenizer.json").write_text(tiny_tokenizer_json(), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    config = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[0], "add_bos_token": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


__all__ = ["CHAT_TEMPLATE", "SPECIAL", "THINKING", "VOCAB", "tiny_tokenizer_json", "write_tokenizer"]
