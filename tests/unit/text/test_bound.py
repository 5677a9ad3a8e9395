"""How few tokens a text can have is said from its length, and never too many."""

import hypothesis
import pytest
import tokenizers
from hypothesis import strategies
from tokenizers import decoders, models, normalizers, pre_tokenizers

from anychip.text.bound import longest_token
from anychip.text.detokenize import token_table
from anychip.text.tokenizer import Tokenizer
from support.tiny_tokenizer import tiny_tokenizer_json


def bound_of(tokenizer):
    return longest_token(tokenizer, token_table(tokenizer, "here"))


def tiny(**stages):
    tokenizer = tokenizers.Tokenizer.from_str(tiny_tokenizer_json())
    for name, stage in stages.items():
        setattr(tokenizer, name, stage)
    return tokenizer


def with_bytes(*, missing=None):
    """A sentencepiece-like vocabulary that falls back to bytes."""
    names = [f"<0x{byte:02X}>" for byte in range(256) if byte != missing] + ["▁", "a", "b", "▁a", "▁▁▁▁"]
    vocabulary = {name: index for index, name in enumerate(names)}
    merges = [("▁", "a")]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


KINDS = {
    "byte level": tiny(),
    "byte level, normal form C": tiny(normalizer=normalizers.NFC()),
    "digits": tiny(
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "byte fallback": with_bytes(),
}
SHRINKING = "\u212a\u212b\u1fef\u1100\u1161\u11a8e\u0301"
TEXT = strategies.text(
    strategies.sampled_from("ab 1\n▁中🙂" + SHRINKING) | strategies.characters(exclude_categories=["Cs"]), max_size=60
)


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(text=TEXT)
@hypothesis.settings(derandomize=True, max_examples=150, deadline=None)
def test_no_text_has_fewer_tokens_than_its_bound(kind, text):
    bound = bound_of(KINDS[kind])
    assert bound is not None
    least = -(-len(text.encode()) // bound)
    assert least <= len(KINDS[kind].encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["\u212a" * 300, "\u1100\u1161\u11a8" * 300, "the lazy dog" * 100, " " * 4000, "▁" * 999]
)
def test_what_shrinks_most_stays_above_the_bound(kind, text):
    least = -(-len(text.encode()) // bound_of(KINDS[kind]))
    assert least <= len(KINDS[kind].encode(text, add_special_tokens=False).ids)


def with_added(**how):
    tokenizer = tiny()
    tokenizer.add_tokens([tokenizers.AddedToken("<mask>", **how)])
    return tokenizer


ENDLESS = {
    "compatibility forms": tiny(normalizer=normalizers.NFKC()),
    "spaces are dropped": tiny(normalizer=normalizers.Strip()),
    "a shortening replacement": tiny(normalizer=normalizers.Replace("aaaa", "a")),
    "a replacement by pattern": tiny(normalizer=normalizers.Replace(tokenizers.Regex(" +"), " ")),
    "pieces are removed": tiny(
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split("x", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "added tokens take spaces": with_added(lstrip=True),
    "unknown bytes fuse": with_bytes(missing=0x41),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_nothing_is_said_where_a_token_may_take_any_text(kind):
    assert bound_of(ENDLESS[kind]) is None


def test_a_long_text_is_bounded_below_without_tokenising(monkeypatch):
    tokenizer = Tokenizer(tiny(), token_table(tiny(), "here"), special_tokens={}, eos_ids=(), adds_bos=False)
    least = tokenizer.tokens_at_least("a b " * 100_000)
    assert 400_000 / 40 < least <= 400_000


@pytest.mark.parametrize("text", ["", "a b " * 3000, "<|im_start|>user\n" * 500, "中文🙂 \n\t" * 700, "\u212a" * 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_get_the_ids_that_short_calls_give(kind, text):
    raw = KINDS[kind]
    made = Tokenizer(raw, token_table(raw, "here"), special_tokens={}, eos_ids=(), adds_bos=False)
    assert made.encode(text) == raw.encode(text, add_special_tokens=False).ids
