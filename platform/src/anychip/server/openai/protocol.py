"""The request bodies of OpenAI's endpoints, with SGLang's additions.

Knows fields and ranges; knows nothing of the model served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from anychip.server.body import Body

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_CHOICES = 128
MAX_PROMPTS = 512

OFF = (False,)

T = TypeVar("T", bound=Sized)


def _as_stops(value: object) -> object:
    """One stop string as a list of one; an empty string among them would stop everything at once."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise PydanticCustomError("stop", "expected a string or a list of strings")
    if "" in stops:
        raise PydanticCustomError("stop", "a stop string must not be empty")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise PydanticCustomError(
            "stop", "at most {count} stop strings of {size} characters", {"count": MAX_STOPS, "size": MAX_STOP_CHARS}
        )
    return stops


Stops = Annotated[list[str], BeforeValidator(_as_stops)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenIds = list[Annotated[int, Field(ge=0)]]


class StreamOptions(Body):
    include_usage: bool | None = False
    include_obfuscation: bool | None = False  # has no meaning here: nothing is padded
    continuous_usage_stats: Literal[False] | None = False


class SamplingBody(Body):
    """What all generating endpoints share."""

    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    seed: Seed | None = None
    stop: Stops = Field(default_factory=list)
    stop_token_ids: TokenIds = Field(default_factory=list)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    logit_bias: dict[str, float] = Field(default_factory=dict)
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0)
    skip_special_tokens: bool = True


class OpenAIBody(SamplingBody):
    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            *("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
            "parallel_tool_calls",  # says how tools may be called; tools themselves are refused
        }
    )
    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "store": OFF,
        "logprobs": OFF,
        "top_logprobs": (0,),
        "return_token_ids": OFF,
        "return_meta_info": OFF,
        "response_format": ({"type": "text"},),
        "json_schema": (),
        "regex": (),
        "ebnf": (),
        "stop_regex": ([],),
        "structural_tag": (),
        "no_stop_trim": OFF,
        "lora_path": (),
        "extra_key": (),
        "cache_salt": (),
        "priority": (0,),
        "custom_logit_processor": (),
        "custom_params": (),
        "allowed_token_ids": (),
        "bad_words": ([],),
        "use_beam_search": OFF,
        "length_penalty": (1, 1.0),
        "spaces_between_special_tokens": (True,),
        "include_stop_str_in_output": OFF,
        "truncate_prompt_tokens": (),
        "prompt_logprobs": (),
        "return_hidden_states": OFF,
        "return_routed_experts": OFF,
    }

    @field_validator("stream_options")
    @classmethod
    def _only_with_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if not info.data.get("stream"):
            raise ValueError("only allowed when stream is true")
        return value

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatMessage(Body):
    """One turn. Its content is checked by the template, which knows the parts it can render."""

    role: Literal["system", "developer", "user", "assistant"]
    content: object = None
    name: str | None = None
    reasoning_content: str | None = None  # of earlier turns, for templates that show it
    refusal: None = None
    tool_calls: list[object] | None = Field(default=None, max_length=0)
    function_call: None = None
    audio: None = None
    annotations: object = None  # clients send back what they were given


class ChatRequest(OpenAIBody):
    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict)
    separate_reasoning: bool = True

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **OpenAIBody.unsupported,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "web_search_options": (),
        "reasoning_effort": (),
        "reasoning": (),
        "thinking": (),
        "verbosity": (),
        "moderation": (),
        "stream_reasoning": (True,),
        "continue_final_message": OFF,
        "add_generation_prompt": (True,),
        "add_special_tokens": OFF,
        "chat_template": (),
        "documents": ([],),
        "input_ids": (),
        "best_of": (1,),
        "echo": OFF,
        "suffix": ("",),
    }

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_limit(cls, value: int | None, info: ValidationInfo) -> int | None:
        if info.data.get("max_tokens") not in {None, value}:
            raise ValueError("differs from max_tokens; send one of them")
        return value


def as_prompts(value: object) -> list[str] | list[list[int]]:
    """The four shapes of a prompt as a list of texts or of token lists."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return _counted(value)
        if _are_ids(value):
            return [value]
        if all(isinstance(item, list) and item and _are_ids(item) for item in value):
            return _counted(value)
    raise PydanticCustomError(
        "prompt", "expected a string, a list of strings, a list of token ids, or a list of such lists; none empty"
    )


def _counted(prompts: T) -> T:
    if len(prompts) > MAX_PROMPTS:
        raise PydanticCustomError("prompt", "at most {count} prompts in one request", {"count": MAX_PROMPTS})
    return prompts


def _are_ids(items: list[object]) -> bool:
    return all(type(item) is int and item >= 0 for item in items)


class CompletionRequest(OpenAIBody):
    prompt: Annotated[object, BeforeValidator(as_prompts)]

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **OpenAIBody.unsupported,
        "logprobs": (),  # here 0 asks for the logprob of the chosen token
        "suffix": ("",),
        "echo": OFF,
        "best_of": (1,),
        "add_special_tokens": (True,),
    }

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        return self.prompt  # type: ignore[return-value]  # the validator's result


__all__ = ["ChatMessage", "ChatRequest", "CompletionRequest", "SamplingBody", "StreamOptions", "as_prompts"]
