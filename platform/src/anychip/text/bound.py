"""Bound how much text one token can stand for. Knows how tokenizers are put together; tokenises nothing.

A long text is refused by this bound before it is tokenised, so it must hold for every text: whatever might let a
token swallow text without end (normalisation that drops characters, unknown characters that fuse, added tokens that
take the spaces beside them) leaves no bound.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from anychip.text.detokenize import TokenTable

#: Normal form C makes at most three bytes one (U+212A, the Kelvin sign, is a K), Hangul nine bytes three.
_SHRINK = {"NFC": 4}
#: These cut text and drop nothing; the first two also write it in other characters, one for each byte.
_LOSSLESS = {"ByteLevel", "Metaspace", "Digits", "Split", "Punctuation", "Sequence", "UnicodeScripts"}
_GROWS = {"Prepend", "Sequence"}


def longest_token(tokenizer: tokenizers.Tokenizer, table: TokenTable) -> int | None:
    """The most bytes of UTF-8 that one token of any text can stand for; None where no bound is known."""
    cut = _state(tokenizer.pre_tokenizer)
    shrink = _shrink(_state(tokenizer.normalizer))
    if shrink is None or not _keeps_all(cut):
        return None
    is_byte_level = any(part.get("type") == "ByteLevel" for part in _parts(cut, "pretokenizers"))
    if not _knows_all(tokenizer, table, is_byte_level=is_byte_level):
        return None
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    # where a space is written as another character, that character itself may be in the text: three bytes
    space = 0 if is_byte_level else 2
    return max(len(piece) + space * piece.count(b" ") for piece in table.pieces) * shrink


def _state(stage: Any) -> Mapping[str, object]:
    """What a stage is made of; empty where there is none."""
    return {} if stage is None else _mapping(json.loads(stage.__getstate__()))


def _shrink(normalizer: Mapping[str, object]) -> int | None:
    """How many bytes of text the normalizer may make one; None where there is no bound."""
    factor = 1
    for part in _parts(normalizer, "normalizers"):
        kind = str(part.get("type"))
        if kind in _SHRINK:
            factor *= _SHRINK[kind]
        elif kind == "Replace":
            found, content = _mapping(part.get("pattern")).get("String"), str(part.get("content"))
            if not isinstance(found, str) or len(content.encode()) < len(found.encode()):
                return None
        elif kind not in _GROWS:
            return None
    return factor


def _keeps_all(pre_tokenizer: Mapping[str, object]) -> bool:
    return all(
        str(part.get("type")) in _LOSSLESS and part.get("behavior") != "Removed"
        for part in _parts(pre_tokenizer, "pretokenizers")
    )


def _knows_all(tokenizer: tokenizers.Tokenizer, table: TokenTable, *, is_byte_level: bool) -> bool:
    """Whether every byte of text has a token, so that none is dropped and none fuse into one unknown."""
    model = tokenizer.model
    if not isinstance(model, tokenizers.models.BPE):
        return False
    if is_byte_level:
        return len({piece for piece in table.pieces if len(piece) == 1}) == 256
    return bool(model.byte_fallback) and all(
        tokenizer.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256)
    )


def _parts(stage: Mapping[str, object], inner: str) -> Iterator[Mapping[str, object]]:
    """A stage and those within it; none for a stage that isn't there."""
    if not stage:
        return
    yield stage
    within = stage.get(inner)
    for part in within if isinstance(within, list) else []:
        yield from _parts(_mapping(part), inner)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


__all__ = ["longest_token"]
