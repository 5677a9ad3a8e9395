"""A tokenizer and a template for tests: bytes are tokens, and any text can be made one token. Knows no file."""

from __future__ import annotations

import codecs

from anychip.text.messages_text import plain_messages
from anychip.text.thinking import TemplateThinking

EOS = 256
FIRST_PIECE = 257
VOCAB = 1024
THINKS = TemplateThinking("switch", "enable_thinking", True, is_marked=True)


class StubDecoder:
    def __init__(self, pieces, skip_special):
        self._pieces = pieces
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids):
        return self._decoder.decode(b"".join(self._bytes(i) for i in ids))

    def flush(self):
        return self._decoder.decode(b"", True)

    def _bytes(self, token):
        if token < 256:
            return bytes([token])
        if token == EOS:
            return b"" if self._skip_special else b"<eos>"
        index = token - FIRST_PIECE
        return self._pieces[index].encode() if index < len(self._pieces) else b""


class StubTokenizer:
    """Ids 0..255 are bytes, 256 is the end, those from 257 on are the given pieces."""

    def __init__(self, pieces=()):
        self.pieces = list(pieces)
        self.vocab_size = VOCAB

    def encode(self, text, add_special=True):
        return list(text.encode())

    def tokens_at_least(self, text):
        return len(text.encode())

    def decode(self, ids, skip_special=True):
        stream = self.stream(skip_special)
        return stream.push(ids) + stream.flush()

    def stream(self, skip_special=True):
        return StubDecoder(self.pieces, skip_special)

    def reply(self):
        """The pieces as a script for the stub core: one token an event."""
        return [[FIRST_PIECE + i] for i in range(len(self.pieces))]


class StubTemplate:
    """Renders `<role>content` for each message.

    Args:
        thinking: the template knows enable_thinking; switched off it closes an empty block, as Qwen3's does.
        opens: it begins the reply with the opening marker unless switched off.
    """

    def __init__(self, thinking=False, opens=False):
        self.thinking = THINKS if thinking else TemplateThinking()
        self.opens = opens
        self.variables = None

    async def render_soon(self, messages, /, **variables):
        return self.render(messages, **variables)

    def render(self, messages, /, *, add_generation_prompt=True, **variables):
        self.variables = variables
        text = "".join(f"<{m['role']}>{m['content']}" for m in plain_messages(messages)) + "<assistant>"
        if self.thinking.switch and variables.get("enable_thinking") is False:
            return text + "<think>\n\n</think>\n\n"
        return text + ("<think>\n" if self.opens else "")
