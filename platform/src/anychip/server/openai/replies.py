"""The replies of OpenAI's endpoints, as they go over the wire. Knows fields; knows nothing of how they are filled."""

from __future__ import annotations

import msgspec

from anychip.engine.outputs import Usage


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int


class ReasoningTokens(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageReply(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


def usage_reply(usage: Usage) -> UsageReply:
    return UsageReply(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        CachedTokens(usage.cached_tokens),
        ReasoningTokens(usage.reasoning_tokens),
    )


class Message(msgspec.Struct, frozen=True):
    content: str
    reasoning_content: str | None = None
    role: str = "assistant"


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: Message
    finish_reason: str
    logprobs: None = None


class ChatReply(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    object: str = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class ChatChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageReply | msgspec.UnsetType = msgspec.UNSET
    object: str = "chat.completion.chunk"


class TextChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: None = None


class TextReply(msgspec.Struct, frozen=True):
    """A whole completion or, without usage, a part of one: the two have the same shape."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageReply | msgspec.UnsetType = msgspec.UNSET
    object: str = "text_completion"


__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatReply",
    "Delta",
    "Message",
    "TextChoice",
    "TextReply",
    "UsageReply",
    "usage_reply",
]
