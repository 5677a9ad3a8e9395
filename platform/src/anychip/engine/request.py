"""What goes in and out of the engine, also between processes. Knows token ids; knows no text, no page and no HTTP.

A request with n > 1 is one GenerateRequest and n streams of TokenEvents, told apart by `index`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]

GREEDY_BELOW = 1e-5  #: a temperature under this is greedy: dividing by it would only overflow


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tokens are chosen and when to stop. Default: the unchanged distribution, until the context is full."""

    temperature: float = 1.0  #: 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  #: 0 is off
    min_p: float = 0.0
    seed: int | None = None  #: None: one is drawn when the request is added
    max_tokens: int | None = None  #: None: until the context is full
    min_tokens: int = 0  #: nothing may end the text before so many tokens
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    n: int = 1  #: completions of the one prompt
    logprobs: int | None = None  #: None: not wanted; n: of each chosen token and the n likeliest of its place

    @property
    def is_penalised(self) -> bool:
        """Whether what was said counts when the next token is chosen."""
        return bool(self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty)

    @property
    def is_adjusted(self) -> bool:
        """Whether the request itself changes logits."""
        return bool(self.logit_bias or self.min_tokens or self.is_penalised)


class GenerateRequest(msgspec.Struct, frozen=True):
    id: str
    prompt_ids: list[int]
    params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    namespace: str = ""  #: requests share cached prefixes only within one; see `namespace_of`
    arrival_s: float = 0.0  #: a monotonic clock; only for metrics, never for order


class LogProb(msgspec.Struct, frozen=True, gc=False):
    """How likely a token was, by the logits after bias and penalties, before temperature and filters."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  #: (token, its log-probability), likeliest first


class TokenEvent(msgspec.Struct, frozen=True):
    """What one step brought for one completion of a request.

    The token that ended the text (EOS or one of stop_token_ids) is not in `token_ids`; it is `stop_token_id`, and
    it counts in `completion_tokens`, because it was computed.
    """

    request_id: str
    index: int  #: which of the n completions
    token_ids: list[int]  #: new since the last event of this index
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0  #: of the prompt, found in the cache when the request was first admitted
    completion_tokens: int = 0
    error: str | None = None
    logprobs: tuple[LogProb, ...] = ()  #: one for each of token_ids, where the request wants them


def namespace_of(**parts: str) -> str:
    """A namespace in which no two different sets of parts collide: each value carries its tag and length.

    An adapter named "x" and a salt "x" differ, and so do ("ab", "c") and ("a", "bc"). Empty values are left out.
    """
    return "".join(f"{tag}={len(value)}:{value};" for tag, value in sorted(parts.items()) if value)


__all__ = ["GREEDY_BELOW", "FinishReason", "GenerateRequest", "LogProb", "SamplingParams", "TokenEvent", "namespace_of"]
