"""POST /generate, in SGLang's shape. Knows that wire format; a stream's text is cumulative, as its clients expect."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from starlette.requests import Request
from starlette.responses import Response

from anychip.server.body_shape import Limited
from anychip.server.errors import json_response
from anychip.server.fields import Body
from anychip.server.generation import Job, Run
from anychip.server.openai.not_offered import GUIDED, NONE, OFF, ON
from anychip.server.openai.protocol import SamplingBody
from anychip.server.openai.values import PROMPT_SCHEMA, MaxTokens, as_prompts, token_limit
from anychip.server.service import Service, new_id
from anychip.server.streaming import DONE, EventStream, frame, until_gone

#: SGLang's default for this endpoint.
DEFAULT_MAX_NEW_TOKENS = 128


class NativeSampling(SamplingBody):
    """How tokens are chosen and when to stop."""

    max_new_tokens: MaxTokens | None = Field(
        default=None, description="The most tokens of an answer; -1: as many as the context has room for."
    )

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **GUIDED,
        "stop_regex": NONE,
        "no_stop_trim": OFF,
        "spaces_between_special_tokens": ON,
        "custom_params": ({},),
        "stream_interval": (1,),
    }


def _checked(value: object) -> object:
    """The prompts as they were given: a list of one is answered by a list."""
    as_prompts(value)
    return value


Prompts = Annotated[object, BeforeValidator(_checked), WithJsonSchema(PROMPT_SCHEMA)]


class GenerateBody(Body):
    """A text or tokens to be continued."""

    limited: ClassVar[Limited] = {
        "text": "prompts",
        "input_ids": "prompts",
        "sampling_params": NativeSampling.limited,
    }

    text: Prompts = Field(default=None, description="The prompt; this or input_ids.")
    input_ids: Prompts = Field(default=None, description="The prompt as token ids.")
    sampling_params: NativeSampling = Field(default_factory=NativeSampling)
    stream: bool = Field(default=False, description="Send server-sent events, each with the whole text so far.")
    rid: str | None = Field(default=None, max_length=200, description="The id in the reply.")
    model: str | None = Field(default=None, description="A name of the served model.")

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "return_logprob": OFF,
        "logprob_start_len": (-1,),
        "top_logprobs_num": (0,),
        "token_ids_logprob": (),
        "return_text_in_logprobs": OFF,
        "return_hidden_states": OFF,
        "return_routed_experts": OFF,
        "image_data": NONE,
        "video_data": NONE,
        "audio_data": NONE,
        "input_embeds": (),
        "lora_path": (),
        "session_params": (),
        "custom_logit_processor": (),
    }

    @model_validator(mode="after")
    def _one_prompt(self) -> GenerateBody:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("exactly one of text and input_ids is needed")
        return self


async def generate(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await service.read(request, GenerateBody)
    service.check_model(body.model)
    run = await service.start(await _job(service, body))
    reply = NativeReply(run, body)
    if body.stream:
        return EventStream(reply.frames(), run.close)
    whole = await until_gone(request, reply.whole())
    return Response(status_code=499) if whole is None else json_response(whole)


async def _job(service: Service, body: GenerateBody) -> Job:
    sampling = body.sampling_params
    max_tokens = token_limit(sampling.max_new_tokens, DEFAULT_MAX_NEW_TOKENS)
    param, given = ("text", body.text) if body.input_ids is None else ("input_ids", body.input_ids)
    prompts = await service.prompts(as_prompts(given), param, sampling, max_tokens)
    return Job(
        new_id("gen"), prompts, sampling.stop, sampling.skip_special_tokens, namespace=service.settings.namespace
    )


class NativeReply:
    """Builds replies from a run: one object, or a list where several prompts or choices were asked for."""

    def __init__(self, run: Run, body: GenerateBody) -> None:
        self._run = run
        self._id = body.rid or run.job.id
        given = body.text if body.input_ids is None else body.input_ids
        self._is_list = run.choices > 1 or (isinstance(given, list) and not isinstance(given[0], int))
        self._started_s = time.monotonic()

    async def whole(self) -> object:
        choices = await self._run.collect()
        replies = [
            self._reply(index, choice.text, _finish(choice.finish_reason, choice.stop))
            for index, choice in enumerate(choices)
        ]
        return replies if self._is_list else replies[0]

    async def frames(self) -> AsyncIterator[bytes]:
        texts = [""] * self._run.choices
        async for deltas in self._run.deltas():
            frames = []
            for delta in deltas:
                texts[delta.choice] += delta.text
                finish = None if delta.finish_reason is None else _finish(delta.finish_reason, delta.stop)
                frames.append(frame(self._reply(delta.choice, texts[delta.choice], finish)))
            yield b"".join(frames)
        yield DONE

    def _reply(self, index: int, text: str, finish: object) -> dict[str, object]:
        usage = self._run.usage_of(index)
        meta = {
            "id": self._id if not self._is_list else f"{self._id}-{index}",
            "finish_reason": finish,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "e2e_latency": time.monotonic() - self._started_s,
        }
        reply: dict[str, object] = {"text": text, "meta_info": meta}
        return {"index": index, **reply} if self._is_list else reply


def _finish(reason: str, stop: str | int | None) -> dict[str, object]:
    return {"type": reason} if stop is None else {"type": reason, "matched": stop}


__all__ = ["GenerateBody", "NativeSampling", "generate"]
