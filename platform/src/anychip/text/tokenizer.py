"""Text to token ids and back for one checkpoint. Knows its special tokens; knows no request and no model."""

from __future__ import annotations

from collections.abc import Iterable

import tokenizers

from anychip.text.bound import longest_token
from anychip.text.detokenize import StreamDecoder, TokenTable, token_table
from anychip.text.gguf_tokenizer import build_tokenizer
from anychip.text.trial import try_out
from anychip.weights.checkpoint import Checkpoint
from anychip.weights.tensors import TokenizerSource
from anychip_sdk.errors import CheckpointInvalid, RequestInvalid


class Tokenizer:
    """A checkpoint's tokenizer. Immutable; may be used by several threads.

    `special_tokens` maps names (bos_token, eos_token ...) to texts, as chat templates want them.
    """

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        table: TokenTable,
        *,
        special_tokens: dict[str, str],
        eos_ids: tuple[int, ...],
        adds_bos: bool | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._table = table
        self._longest = longest_token(tokenizer, table)
        self.special_tokens = special_tokens
        self.bos_id: int | None = self._id_of("bos_token")
        own_eos = self._id_of("eos_token")
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys((*eos_ids, *(() if own_eos is None else (own_eos,)))))
        self.special_ids: frozenset[int] = table.special
        # None: whatever tokenizer.json itself does
        self.adds_bos: bool = self._own_encoding_starts_with_bos() if adds_bos is None else adds_bos

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """Build it from tokenizer.json, or from the metadata of a GGUF file.

        Raises:
            CheckpointInvalid: there is none, or one of a kind that is not supported, or of another model.
        """
        made = cls.from_source(checkpoint.tokenizer, checkpoint.config.eos_token_ids)
        rows, source = checkpoint.config.vocab_size, checkpoint.tokenizer
        beyond = {text: token for text, token in made.vocabulary().items() if token >= rows}
        if beyond:
            text, token = max(beyond.items(), key=lambda item: item[1])
            file = "tokenizer.ggml.tokens" if source.tokenizer_json is None else source.tokenizer_json.name
            raise CheckpointInvalid(
                f"checkpoint {source.where}: {file}: {len(beyond)} of its tokens have ids that the model has no row "
                f"for, up to {token} ({text[:40]!r}); expected are ids from 0 to {rows - 1}",
                hint="take the tokenizer that belongs to these weights",
            )
        return made

    @classmethod
    def from_source(cls, source: TokenizerSource, eos_ids: tuple[int, ...] = ()) -> Tokenizer:
        """The same, with the model's end ids given; the tokenizer's own eos_token counts as well."""
        where = str(source.where)
        if source.gguf is not None:
            built = build_tokenizer(source.gguf, where)
            table = token_table(built.tokenizer, where)
            names, adds_bos = dict(built.special_tokens), built.adds_bos
            return cls(built.tokenizer, table, special_tokens=names, eos_ids=eos_ids, adds_bos=adds_bos)
        tokenizer = _load(source)
        setting = source.tokenizer_config.get("add_bos_token")
        return cls(
            tokenizer,
            token_table(tokenizer, where),
            special_tokens=_special_tokens(source),
            eos_ids=eos_ids,
            adds_bos=setting if isinstance(setting, bool) else None,
        )

    @property
    def vocab_size(self) -> int:
        """One more than the highest id; the model's embedding may have more rows."""
        return len(self._table.pieces)

    def vocabulary(self) -> dict[str, int]:
        """The id of every token, added ones included, by its text."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text. Markup in the text (`<|im_end|>`) becomes special tokens.

        With `add_special` a model that wants a BOS gets exactly one, also where the text begins with it already.

        Other threads run meanwhile, however long the text is.

        Raises:
            RequestInvalid: the text is not Unicode (a lone surrogate).
        """
        _utf8_bytes(text)
        # what tokenizer.json would add besides a BOS is not wanted in a prompt: an EOS would end it
        ids = self._ids(text)
        if not (add_special and self.adds_bos) or self.bos_id is None:
            return ids
        first = next((i for i, token in enumerate(ids) if token != self.bos_id), len(ids))
        return [self.bos_id, *ids[first:]]

    def tokens_at_least(self, text: str) -> int:
        """A number of tokens that the text surely has, from its length alone; 0 where nothing can be said.

        Raises:
            RequestInvalid: as `encode`.
        """
        return 0 if self._longest is None else -(-_utf8_bytes(text) // self._longest)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of some ids. Ids outside of the vocabulary stand for nothing."""
        return self._table.text(ids, skip_special=skip_special)

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder for ids that come one after the other; its pieces joined equal `decode` of all ids."""
        return StreamDecoder(self._table, skip_special=skip_special)

    def token_id(self, token: str) -> int | None:
        """The id of one token by its exact text, e.g. `</think>`; None where the vocabulary lacks it."""
        index: int | None = self._tokenizer.token_to_id(token)
        return index

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for; empty outside of the vocabulary."""
        pieces = self._table.pieces
        return pieces[token_id] if 0 <= token_id < len(pieces) else b""

    def _ids(self, text: str) -> list[int]:
        try:
            [encoded] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)  # others may run meanwhile
            ids: list[int] = encoded.ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library's panics are no Exception; a rule of the file may run wild
            raise RequestInvalid(f"the model's tokenizer can't encode this text: {str(error)[:200]}") from error
        return ids

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.token_id(text)

    def _own_encoding_starts_with_bos(self) -> bool:
        ids = self._tokenizer.encode("", add_special_tokens=True).ids
        return self.bos_id is not None and ids[:1] == [self.bos_id]


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise RequestInvalid(
            f"the text holds half a surrogate pair at character {error.start}, which is no Unicode text"
        ) from error


def _load(source: TokenizerSource) -> tokenizers.Tokenizer:
    if source.tokenizer_json is None:
        raise CheckpointInvalid(
            f"checkpoint {source.where}: tokenizer.json is missing",
            hint="save it with the model (transformers' save_pretrained of a fast tokenizer writes it)",
        )
    try_out(source.tokenizer_json)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(source.tokenizer_json))
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointInvalid(f"checkpoint {source.where}: tokenizer.json can't be read: {error}") from error
    # settings of whoever trained it, which would cut or fill prompts silently
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(source: TokenizerSource) -> dict[str, str]:
    """The named tokens of tokenizer_config.json, each a text or an object with `content`."""
    found: dict[str, str] = {}
    for key, value in source.tokenizer_config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(content, str):
            found[key] = content
    return found


__all__ = ["StreamDecoder", "Tokenizer"]
