"""Rebuild a byte-level BPE tokenizer out of GGUF metadata. Knows the pre-tokenizers by their names; reads no file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from anychip.models.raw import Fields, refuse

_PREFIX = "tokenizer.ggml."

# How text is cut before merging, as the models' own tokenizers do it. Digits: llama-bpe in threes, qwen2 singly.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class _Kind(IntEnum):
    """GGUF's token types that matter here: special tokens, and added ones that are ordinary text."""

    CONTROL = 3
    USER_DEFINED = 4


class _PreTokenizer(NamedTuple):
    split: pre_tokenizers.PreTokenizer
    normalizer: normalizers.Normalizer | None = None
    ignore_merges: bool = False  # a word that is in the vocabulary is taken whole
    adds_bos: bool = False  # where the metadata doesn't say


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _pre_tokenizers() -> dict[str, _PreTokenizer]:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    return {
        "default": _PreTokenizer(plain),
        "gpt-2": _PreTokenizer(plain),
        "smollm": _PreTokenizer(digits),
        "llama-bpe": _PreTokenizer(_split(_WORDS % "{1,3}"), ignore_merges=True, adds_bos=True),
        "qwen2": _PreTokenizer(_split(_WORDS % ""), normalizer=normalizers.NFC()),
    }


class GGUFTokenizer(NamedTuple):
    """`bos`, `eos` and `unknown` are token texts, None where the metadata names none."""

    tokenizer: tokenizers.Tokenizer
    adds_bos: bool
    special_tokens: Mapping[str, str]


def build_tokenizer(metadata: Mapping[str, object], where: str) -> GGUFTokenizer:
    """The tokenizer that the metadata describes.

    Raises:
        CheckpointInvalid: a model or pre-tokenizer that is not supported, or missing lists.
    """
    problems: list[str] = []
    fields = Fields({key.removeprefix(_PREFIX): value for key, value in metadata.items()}, problems, "tokenizer.ggml")
    known = _pre_tokenizers()
    model, pre = fields.string("model", ""), fields.string("pre", "default")
    if model != "gpt2":
        problems.append(f"tokenizer model {model!r} is not supported in GGUF files (supported: gpt2)")
    if pre not in known:
        problems.append(f"pre-tokenizer {pre!r} is not supported (supported: {', '.join(known)})")
    tokens, merges = fields.strings("tokens") or (), fields.strings("merges") or ()
    kinds = fields.raw.get("token_type")
    if not tokens:
        problems.append("tokenizer.ggml.tokens is missing")
    if len(set(tokens)) != len(tokens):
        problems.append("tokenizer.ggml.tokens has the same token twice")
    if kinds is not None and (not isinstance(kinds, list) or len(kinds) != len(tokens)):
        problems.append("tokenizer.ggml.token_type is not as long as tokens")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        problems.append("tokenizer.ggml.merges has an entry that is not two tokens")
    adds_bos = fields.boolean("add_bos_token", pre in known and known[pre].adds_bos)
    if problems:
        raise refuse(where, problems)
    try:
        tokenizer = _build(known[pre], tokens, [(pair[0], pair[1]) for pair in pairs])
    except Exception as error:  # the library raises nothing more specific, e.g. of a merge into no token
        raise refuse(where, [f"tokenizer.ggml.tokens and merges make no tokenizer: {str(error)[:200]}"]) from error
    _add(tokenizer, tokens, kinds if isinstance(kinds, list) else [])
    return GGUFTokenizer(tokenizer, adds_bos, _special(fields, tokens))


def _build(pre: _PreTokenizer, tokens: tuple[str, ...], merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre.ignore_merges))
    tokenizer.pre_tokenizer = pre.split
    tokenizer.decoder = decoders.ByteLevel()
    if pre.normalizer is not None:
        tokenizer.normalizer = pre.normalizer
    return tokenizer


def _add(tokenizer: tokenizers.Tokenizer, tokens: tuple[str, ...], kinds: list[int]) -> None:
    """Mark the tokens that are matched whole in the text; they keep their ids."""
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _Kind.CONTROL:
            tokenizer.add_special_tokens([tokenizers.AddedToken(token, normalized=False)])
        elif kind == _Kind.USER_DEFINED:
            tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False)])


def _special(fields: Fields, tokens: tuple[str, ...]) -> dict[str, str]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found: dict[str, str] = {}
    for name, key in names.items():
        index = fields.optional_integer(f"{name}_token_id")
        if index is not None and index < len(tokens):
            found[key] = tokens[index]
    return found


__all__ = ["GGUFTokenizer", "build_tokenizer"]
