"""Turn token ids into text piece by piece, never half a character. Knows bytes per token; knows no request.

Every token stands for some bytes. They run through one incremental UTF-8 decoder, which keeps back what may still
become a character. So the pieces of a stream joined are exactly the text of all ids at once, and the work per
token doesn't grow with the text.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import tokenizers

from anychip.models.decoder_config import MAX_VOCABULARY
from anychip_sdk.errors import CheckpointInvalid

_METASPACE = "▁"  # stands for a space in sentencepiece vocabularies


@dataclass(frozen=True)
class TokenTable:
    """The bytes of each token id; ids that the vocabulary lacks (padding of the embedding) stand for nothing.

    `strips_space`: the text as a whole loses one leading space, which the tokenizer had put there.
    """

    pieces: Sequence[bytes]
    special: frozenset[int]
    strips_space: bool = False

    def text(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        stream = StreamDecoder(self, skip_special=skip_special)
        return stream.push(ids) + stream.flush()


class StreamDecoder:
    """Text of a growing sequence of ids: `push` what is new, `flush` at the end.

    A replacement character comes out only for bytes that are no UTF-8 whatever follows, or at `flush` when the
    sequence ended within a character.
    """

    def __init__(self, table: TokenTable, *, skip_special: bool = True) -> None:
        self._table = table
        self._skip = table.special if skip_special else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = table.strips_space

    def push(self, ids: Iterable[int]) -> str:
        """The characters that these ids complete; may be empty."""
        pieces, skip = self._table.pieces, self._skip
        size = len(pieces)
        return self._emit(b"".join([pieces[i] for i in ids if 0 <= i < size and i not in skip]), final=False)

    def flush(self) -> str:
        """What was kept back. The decoder is then as new."""
        text = self._emit(b"", final=True)
        self._decoder.reset()
        self._at_start = self._table.strips_space
        return text

    def _emit(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if self._at_start and text:
            self._at_start = False
            return text.removeprefix(" ")
        return text


def token_table(tokenizer: tokenizers.Tokenizer, where: str) -> TokenTable:
    """Read each token's bytes out of a tokenizer.

    Raises:
        CheckpointInvalid: its decoder is neither byte-level nor sentencepiece-like.
    """
    added = tokenizer.get_added_tokens_decoder()
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    size = max(vocab.values(), default=-1) + 1
    parts = _decoder_parts(tokenizer)
    kinds = {str(part.get("type")) for part in parts}
    if "ByteLevel" in kinds:
        convert, strips_space = _byte_level(), False
    elif kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        convert, strips_space = None, bool(kinds & {"Strip", "Metaspace"})
    else:
        names = ", ".join(sorted(kinds)) or "none"
        raise CheckpointInvalid(
            f"checkpoint {where}: the tokenizer's decoder ({names}) is not supported "
            "(supported: ByteLevel, and Replace + ByteFallback + Fuse + Strip)"
        )
    if size > MAX_VOCABULARY:
        token = max(vocab, key=vocab.__getitem__)
        raise CheckpointInvalid(
            f"checkpoint {where}: the tokenizer's token {token[:50]!r} has id {size - 1:,}, "
            f"expected less than {MAX_VOCABULARY:,}"
        )
    pieces = [b""] * size
    for token, index in vocab.items():
        if index in added:
            pieces[index] = added[index].content.encode("utf-8", "replace")
        elif convert is not None:
            pieces[index] = _from_byte_level(token, convert)
        else:
            pieces[index] = _from_sentencepiece(token)
    special = frozenset(index for index, token in added.items() if token.special)
    return TokenTable(pieces, special, strips_space)


def _decoder_parts(tokenizer: tokenizers.Tokenizer) -> list[Mapping[str, object]]:
    """The decoder's stages, read from its own JSON."""
    if tokenizer.decoder is None:
        return []
    state = json.loads(tokenizer.decoder.__getstate__())
    parts: list[Mapping[str, object]] = state["decoders"] if state.get("type") == "Sequence" else [state]
    return parts


def _byte_level() -> Mapping[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 bytes stand for themselves, the others follow from 256 on in order.
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _from_byte_level(token: str, convert: Mapping[str, int]) -> bytes:
    try:
        return bytes(convert[character] for character in token)
    except KeyError:  # a token outside of the alphabet is literal text
        return token.encode("utf-8", "replace")


def _from_sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return token.encode("utf-8", "replace")
    return token.replace(_METASPACE, " ").encode("utf-8", "replace")


__all__ = ["StreamDecoder", "TokenTable", "token_table"]
