"""The end token that a tokenizer's own config names, as an id. Knows the tokenizer's files; builds no tokenizer.

Chat models name the end of a turn in one file and the end of the text in another: whatever any of them names ends an
answer. The worker, which decides about ends, has no tokenizer; so the id is looked up in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from anychip.models.config import ModelConfig
from anychip.weights.files import Unreadable, read_bytes
from anychip.weights.tensors import TokenizerSource

MAX_TOKENIZER_BYTES = 128 * 2**20

Config = TypeVar("Config", bound=ModelConfig)


class _Added(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    added_tokens: list[_Added] = []


class _Model(msgspec.Struct):
    vocab: dict[str, int] = {}


class _Vocabulary(msgspec.Struct):
    model: _Model


def with_end(config: Config, source: TokenizerSource) -> Config:
    """The config with the tokenizer's end among its own; one without a row can't be generated, so it ends nothing."""
    end = named_end(source)
    if end is None or end in config.eos_token_ids or not 0 <= end < config.vocab_size:
        return config
    return replace(config, eos_token_ids=(*config.eos_token_ids, end))


def named_end(source: TokenizerSource) -> int | None:
    """The id of tokenizer_config.json's eos_token; None where none is named, or the vocabulary lacks it."""
    token = source.tokenizer_config.get("eos_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    if not isinstance(token, str):
        return None
    listed = source.tokenizer_config.get("added_tokens_decoder")
    if isinstance(listed, Mapping):
        for number, entry in listed.items():
            if isinstance(entry, Mapping) and entry.get("content") == token and number.isdecimal():
                return int(number)
    return _in_file(source, token)


def _in_file(source: TokenizerSource, token: str) -> int | None:
    """Where the file can't be read, whoever builds the tokenizer says why."""
    if source.tokenizer_json is None:
        return None
    try:
        data = read_bytes(source.tokenizer_json, MAX_TOKENIZER_BYTES)
        for added in msgspec.json.decode(data, type=_AddedTokens).added_tokens:
            if added.content == token:
                return added.id
        return msgspec.json.decode(data, type=_Vocabulary).model.vocab.get(token)
    except (Unreadable, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


__all__ = ["MAX_TOKENIZER_BYTES", "named_end", "with_end"]
