"""The request bodies of OpenAI's endpoints, with SGLang's and vLLM's additions.

Knows fields and ranges; knows nothing of the model served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, FailFast, Field, ValidationInfo, WithJsonSchema, field_validator

from anychip.server.body_shape import Limited
from anychip.server.fields import Body
from anychip.server.openai import not_offered
from anychip.server.openai.values import PROMPT_SCHEMA, MaxTokens, Seed, Stops, TokenIds, Whole, as_prompts

_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
#: A text, text parts, or null where an assistant said nothing.
Content = Annotated[
    object,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}),
]


class StreamOptions(Body):
    """How a stream is sent."""

    include_usage: bool = Field(default=False, description="A last chunk holds the counts of tokens.")

    ignored: ClassVar[frozenset[str]] = frozenset({"include_obfuscation"})  # nothing is padded here
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {"continuous_usage_stats": not_offered.OFF}


class SamplingBody(Body):
    """What all generating endpoints share."""

    n: Annotated[Whole, Field(ge=1, description="Choices for each prompt.")] = 1
    seed: Annotated[Seed | None, Field(description="Makes drawn tokens repeatable.")] = None
    stop: Stops = Field(
        default_factory=list, description="A text that ends the answer, or several; they are left out of it."
    )
    stop_token_ids: TokenIds = Field(default_factory=list, description="Further tokens that end the text.")
    temperature: float | None = Field(default=None, ge=0, le=2, description="0 is greedy. Default: the model's own.")
    top_p: float | None = Field(default=None, gt=0, le=1, description="Default: the model's own.")
    top_k: Annotated[Whole | None, Field(ge=-1, description="0 and -1 are off. Default: the model's own.")] = None
    min_p: float | None = Field(default=None, ge=0, le=1, description="Default: the model's own.")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2, description="Default: the model's own.")
    logit_bias: dict[str, float] = Field(
        default_factory=dict, description="Token id to what is added to its logit, -100 to 100."
    )
    ignore_eos: bool = Field(default=False, description="The model's own end doesn't end the text.")
    min_tokens: Annotated[Whole, Field(ge=0, description="Nothing ends the text before so many tokens.")] = 0
    skip_special_tokens: bool = Field(default=True, description="Special tokens don't appear in the text.")

    limited: ClassVar[Limited] = {
        "n": "choices_per_prompt",
        "stop": "stop_strings",
        "stop_token_ids": "stop_token_ids",
        "logit_bias": "logit_bias_entries",
    }


class OpenAIBody(SamplingBody):
    """What OpenAI's endpoints share."""

    model: str | None = Field(default=None, description="A name of the served model.")
    stream: bool = Field(default=False, description="Send the text as server-sent events while it comes.")
    stream_options: StreamOptions | None = Field(default=None, description="Only with stream.")
    max_tokens: MaxTokens | None = Field(
        default=None, description="The most tokens of an answer; -1: as many as the context has room for."
    )

    ignored: ClassVar[frozenset[str]] = not_offered.IGNORED
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = not_offered.GENERATING

    @field_validator("stream_options")
    @classmethod
    def _only_with_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if not info.data.get("stream"):
            raise ValueError("only allowed when stream is true")
        return value

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatMessage(Body):
    """One turn. Its content is checked by the template, which knows the parts it can render."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content = Field(default=None, description="A text or text parts; an assistant's may be left out.")
    name: str | None = Field(default=None, description="For templates that show it.")
    reasoning_content: str | None = Field(default=None, description="Thinking of an earlier turn, where shown.")
    reasoning: str | None = Field(default=None, description="Another name of reasoning_content.")

    #: what clients send back as they were given it
    ignored: ClassVar[frozenset[str]] = frozenset({"id", "annotations"})
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = not_offered.MESSAGE

    @field_validator("reasoning")
    @classmethod
    def _one_reasoning(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("reasoning_content") not in {None, value}:
            raise ValueError("differs from reasoning_content; send one of them")
        return value


class ChatRequest(OpenAIBody):
    """A conversation to be continued."""

    messages: Annotated[list[ChatMessage], FailFast(), Field(min_length=1)]
    max_completion_tokens: MaxTokens | None = Field(default=None, description="The newer name of max_tokens.")
    enable_thinking: bool | None = Field(
        default=None, description="Whether the model thinks first, where the recipe leaves it to requests."
    )
    chat_template_kwargs: dict[str, object] = Field(
        default_factory=dict, description="Variables for the chat template."
    )
    separate_reasoning: bool = Field(default=True, description="Thinking comes apart from the answer.")

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = not_offered.CHAT
    limited: ClassVar[Limited] = {**OpenAIBody.limited, "messages": "messages"}

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_limit(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("max_tokens") not in {None, value}:
            raise ValueError("differs from max_tokens; send one of them")
        return value


class CompletionRequest(OpenAIBody):
    """A text to be continued."""

    prompt: Annotated[
        object,
        BeforeValidator(as_prompts),
        WithJsonSchema(PROMPT_SCHEMA),
        Field(description="A text, token ids, or a list of either."),
    ]

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = not_offered.COMPLETION
    limited: ClassVar[Limited] = {**OpenAIBody.limited, "prompt": "prompts"}

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        return self.prompt  # type: ignore[return-value]  # the validator's result


__all__ = ["ChatMessage", "ChatRequest", "CompletionRequest", "SamplingBody", "StreamOptions"]
