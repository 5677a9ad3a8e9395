"""GGUF tokenizers: which metadata is accepted, how each pre-tokenizer cuts, what is refused."""

from __future__ import annotations

import json

import pytest

from anychip.text.gguf_tokenizer import build_tokenizer
from anychip_sdk.errors import CheckpointInvalid
from support.tiny_tokenizer import tiny_tokenizer_json


def metadata(**changes):
    state = json.loads(tiny_tokenizer_json())
    tokens = [token for token, _ in sorted(state["model"]["vocab"].items(), key=lambda item: item[1])]
    kinds = [1] * len(tokens)
    kinds[:3] = [3, 3, 3]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]],
        "bos_token_id": 1,
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def cut(pre, text):
    tokenizer = build_tokenizer(metadata(pre=pre), "x").tokenizer
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def test_digits_are_cut_as_each_model_cuts_them():
    assert cut("gpt-2", "a 12345") == ["a", "Ġ12345"]
    assert cut("smollm", "a 12345") == ["a", "Ġ", "1", "2", "3", "4", "5"]
    assert cut("llama-bpe", "a 12345") == ["a", "Ġ", "123", "45"]
    assert cut("qwen2", "a 12345") == ["a", "Ġ", "1", "2", "3", "4", "5"]


def test_qwen2_composes_characters_first():
    tokenizer = build_tokenizer(metadata(pre="qwen2"), "x").tokenizer
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


@pytest.mark.parametrize(
    ("pre", "setting", "adds"),
    [("gpt-2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", True, True)],
)
def test_bos_follows_the_metadata_then_the_pre_tokenizer(pre, setting, adds):
    assert build_tokenizer(metadata(pre=pre, add_bos_token=setting), "x").adds_bos is adds


def test_special_tokens_are_named():
    built = build_tokenizer(metadata(eos_token_id=2, padding_token_id=99999), "x")
    assert built.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, "tokenizer model 'llama' is not supported"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported (supported: default, gpt-2, smollm, llama-bpe"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": ["a", "a"], "token_type": [1, 1], "merges": []}, "same token twice"),
        ({"token_type": [1]}, "token_type is not as long as tokens"),
        ({"merges": ["ab"]}, "not two tokens"),
    ],
)
def test_metadata_that_makes_no_tokenizer_is_refused(changes, words):
    with pytest.raises(CheckpointInvalid) as caught:
        build_tokenizer(metadata(**changes), "x.gguf")
    assert words in str(caught.value)
    assert "x.gguf" in str(caught.value)
