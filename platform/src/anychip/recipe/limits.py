"""The keys of `server.limits`: how much one client, connection or request may ask for. Knows no server."""

from __future__ import annotations

import textwrap
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from anychip.recipe.quantities import Count, Expect, Positive, Seconds, Unit

_DURATION = Expect("a duration such as 500ms or 10s")


class LimitsSection(BaseModel):
    """What is refused, with the limit's name and value, before it costs other clients time or memory."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    connections: Annotated[
        Positive,
        Unit("connections"),
        Field(description="Open at once. A new one takes the place of the longest idle one; without any it gets 503."),
    ] = 1024
    header_bytes: Annotated[
        Count, Unit("bytes"), Field(description="The request line and all headers of a request; more gets 431.")
    ] = 65536
    headers: Annotated[
        Positive, Unit("headers"), Field(description="The number of headers of a request; more gets 431.")
    ] = 100
    header_timeout: Annotated[
        Seconds, _DURATION, Field(description="From a connection's begin, or a request's, to the end of its headers.")
    ] = Seconds(10)
    body_timeout: Annotated[
        Seconds, _DURATION, Field(description="From the end of the headers to the end of the body; after it comes 408.")
    ] = Seconds(60)
    idle_timeout: Annotated[
        Seconds, _DURATION, Field(description="How long a connection stays open without a request.")
    ] = Seconds(65)
    send_timeout: Annotated[
        Seconds, _DURATION, Field(description="How long a client may read too little of an answer; then it is cut off.")
    ] = Seconds(60)
    body_bytes: Annotated[Count, Unit("bytes"), Field(description="The body of a request; more gets 413.")] = (
        10 * 1024 * 1024
    )
    body_values: Annotated[
        Count, Unit("values"), Field(description="Numbers, texts and all other values in a body; more gets 413.")
    ] = 512 * 1024
    body_keys: Annotated[
        Count, Unit("keys"), Field(description="Objects, lists and keys of objects in a body; more gets 413.")
    ] = 64 * 1024
    object_keys: Annotated[
        Count, Unit("keys"), Field(description="Keys of one object, where no other limit says how many.")
    ] = 256
    messages: Annotated[Count, Unit("messages"), Field(description="Messages of a chat.")] = 4096
    prompts: Annotated[Count, Unit("prompts"), Field(description="Prompts of one request.")] = 512
    choices_per_prompt: Annotated[Count, Unit("choices"), Field(description="The most that n may ask for.")] = 128
    choices: Annotated[
        Count, Unit("choices"), Field(description="Choices of one request, over all of its prompts.")
    ] = 1024
    logit_bias_entries: Annotated[Count, Unit("tokens"), Field(description="Tokens named by logit_bias.")] = 1024
    stop_strings: Annotated[Count, Unit("texts"), Field(description="Stop strings of a request.")] = 16
    stop_characters: Annotated[Count, Unit("characters"), Field(description="The length of a stop string.")] = 1024
    stop_token_ids: Annotated[Count, Unit("tokens"), Field(description="Stop tokens of a request.")] = 256
    tokenize_characters: Annotated[
        Count,
        Unit("characters"),
        Field(description="The text that /tokenize takes; prompts are bounded by the context."),
    ] = 1024 * 1024
    errors: Annotated[
        Positive,
        Unit("errors"),
        Field(description="Mistakes of one request that its answer lists; the rest is counted."),
    ] = 20
    error_characters: Annotated[
        Annotated[int, Field(ge=100)],
        Unit("characters"),
        Field(description="The length of each mistake's text."),
    ] = 500

    def lines(self) -> list[str]:
        """All limits in words, on as few lines as hold them."""
        return textwrap.wrap(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self), 116)


__all__ = ["LimitsSection"]
