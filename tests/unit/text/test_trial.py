"""Tokenizers from strangers: what makes the library panic, abort or run wild is a refusal, and this process lives."""

import base64
import json

import pytest

from anychip.text import trial
from anychip.text.tokenizer import Tokenizer
from anychip.weights.tensors import TokenizerSource
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid
from support.tiny_tokenizer import tiny_tokenizer_json, write_tokenizer


def source(folder, **changes):
    write_tokenizer(folder)
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(tiny_tokenizer_json()) | changes))
    return TokenizerSource(folder, file)


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def charsmap(size):
    packed = base64.b64encode(size.to_bytes(4, "little") + b"\0\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": packed}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer": charsmap(2**32 - 1)}, "the tokenizers library crashes on it (SIGABRT)"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "precompiled_charsmap"),
        ({"pre_tokenizer": split("(a+)+$")}, "retry-limit-in-match"),
        ({"pre_tokenizer": split("(")}, "unmatched parenthesis"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "must be non-zero"),
        ({"model": None}, "tokenizer.json can't be read"),
    ],
)
def test_a_file_that_breaks_the_library_is_refused(tmp_path, changes, words):
    with pytest.raises(CheckpointInvalid) as caught:
        Tokenizer.from_source(source(tmp_path, **changes))
    assert words in str(caught.value)
    assert f"checkpoint {tmp_path}: tokenizer.json" in str(caught.value)


def test_an_id_beyond_any_vocabulary_is_refused_by_name(tmp_path):
    model = json.loads(tiny_tokenizer_json())["model"]
    model["vocab"]["far"] = 300_000_000
    with pytest.raises(CheckpointInvalid, match="token 'far' has id 300,000,000, expected less than 4,194,304"):
        Tokenizer.from_source(source(tmp_path, model=model))


def test_a_file_of_absurd_length_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "MAX_FILE_BYTES", 1000)
    with pytest.raises(CheckpointInvalid, match="bytes, expected at most 1,000"):
        Tokenizer.from_source(source(tmp_path))


def test_a_text_on_which_the_tokenizer_panics_is_refused(tmp_path):
    tokenizer = Tokenizer.from_source(source(tmp_path, pre_tokenizer=split("(b+)+$")))
    assert tokenizer.encode("hello")
    with pytest.raises(RequestInvalid, match=r"the model's tokenizer can't encode this text: .*retry-limit"):
        tokenizer.encode("b" * 40 + "!")
    assert tokenizer.encode("hello")
