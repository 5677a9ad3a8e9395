"""POST /v1/chat/completions. Knows messages, the template and the chat wire format; knows no tokens' meaning."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from anychip.engine.outputs import TextDelta
from anychip.server.errors import json_response
from anychip.server.generation import Job, Prompt, Run
from anychip.server.openai.protocol import ChatMessage, ChatRequest
from anychip.server.openai.replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatReply,
    Delta,
    Message,
    usage_reply,
)
from anychip.server.openai.values import token_limit
from anychip.server.params import sampling_params
from anychip.server.service import Service, new_id
from anychip.server.streaming import DONE, EventStream, frame, until_gone
from anychip.server.thinking import splitter_for, template_variables
from anychip.text.messages_text import plain_messages
from anychip.text.thinking import Begins, ends_like_a_marker, reply_begins
from anychip_sdk.errors import RequestInvalid

#: A message is as much work as so many characters.
MESSAGE_SIZE = 8


class Rendered(NamedTuple):
    begins: Begins
    ids: list[int]


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await service.read(request, ChatRequest)
    service.check_model(body.model)
    job = await _job(service, body)
    run = await service.start(job)
    created_s, model = int(time.time()), service.model.served_name
    if body.stream:
        chunks = ChatChunks(run, created_s, model)
        return EventStream(chunks.frames(include_usage=body.include_usage), run.close)
    reply = await until_gone(request, _whole(run, created_s, model))
    return Response(status_code=499) if reply is None else json_response(reply)


async def _job(service: Service, body: ChatRequest) -> Job:
    rendered = await _render(service, body)
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    max_tokens = token_limit(asked, None)
    [params] = sampling_params(body, max_tokens, [len(rendered.ids)], service.model, service.settings.sampling_defaults)
    return Job(
        new_id("chatcmpl"),
        [Prompt(rendered.ids, params)],
        body.stop,
        body.skip_special_tokens,
        lambda: splitter_for(rendered.begins, service.thinking) if body.separate_reasoning else None,
        service.settings.namespace,
    )


async def _render(service: Service, body: ChatRequest) -> Rendered:
    template = service.template
    if template is None:
        raise RequestInvalid("this model has no chat template; use /v1/completions", param="messages")
    variables = template_variables(
        service.model.thinking, service.thinking, body.enable_thinking, body.chat_template_kwargs
    )
    size = MESSAGE_SIZE * len(body.messages)
    messages = await service.offload.run(size, lambda: template_messages(body.messages))
    text = await template.render_soon(messages, add_generation_prompt=True, **variables)
    begins = reply_begins(text)
    changed = None if begins == "either" else await service.offload.run(size, lambda: without_marker_ends(messages))
    if changed is not None:
        # who wrote that last word, the template or the client? The template would write it again
        begins = reply_begins(await template.render_soon(changed, add_generation_prompt=True, **variables))
    # the template writes the special tokens itself
    return Rendered(begins, await service.encode(text, "messages", add_special=False))


def without_marker_ends(messages: list[Mapping[str, object]]) -> list[dict[str, object]] | None:
    """The messages with a full stop behind each text that ends like a marker of thinking; None where none does."""
    plain = plain_messages(messages)
    if not any(ends_like_a_marker(message.values()) for message in plain):
        return None
    return [
        {key: f"{value}." if ends_like_a_marker([value]) else value for key, value in message.items()}
        for message in plain
    ]


def template_messages(messages: Sequence[ChatMessage]) -> list[Mapping[str, object]]:
    return [template_message(message, index) for index, message in enumerate(messages)]


def template_message(message: ChatMessage, index: int) -> Mapping[str, object]:
    """A message as templates expect it; `developer` is the newer name of `system`."""
    if message.content is None and message.role != "assistant":
        path = f"messages[{index}].content"
        raise RequestInvalid(f"{path}: a {message.role} message needs content", param=path)
    rendered: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content,
    }
    if message.name is not None:
        rendered["name"] = message.name
    if (reasoning := message.reasoning_content or message.reasoning) is not None:
        rendered["reasoning_content"] = reasoning
    return rendered


async def _whole(run: Run, created_s: int, model: str) -> ChatReply:
    choices = [
        ChatChoice(index, Message(choice.text, choice.reasoning or None), choice.finish_reason)
        for index, choice in enumerate(await run.collect())
    ]
    return ChatReply(run.job.id, created_s, model, choices, usage_reply(run.usage))


class ChatChunks:
    """The frames of one streamed chat; the role comes with the first text of each choice."""

    def __init__(self, run: Run, created_s: int, model: str) -> None:
        self._run = run
        self._head = (run.job.id, created_s, model)
        self._silent = set(range(run.choices))

    async def frames(self, *, include_usage: bool) -> AsyncIterator[bytes]:
        async for deltas in self._run.deltas():
            yield b"".join([self._frames_of(delta) for delta in deltas])
        if include_usage:
            yield frame(ChatChunk(*self._head, [], usage_reply(self._run.usage)))
        yield DONE

    def _frames_of(self, delta: TextDelta) -> bytes:
        frames = b""
        if delta.reasoning:
            frames += self._chunk(delta.choice, Delta(self._role(delta.choice), None, delta.reasoning))
        if delta.text:
            frames += self._chunk(delta.choice, Delta(self._role(delta.choice), delta.text))
        if delta.finish_reason is not None:
            frames += self._chunk(delta.choice, Delta(self._role(delta.choice)), delta.finish_reason)
        return frames

    def _role(self, index: int) -> str | None:
        if index not in self._silent:
            return None
        self._silent.discard(index)
        return "assistant"

    def _chunk(self, index: int, delta: Delta, finish_reason: str | None = None) -> bytes:
        return frame(ChatChunk(*self._head, [ChatChunkChoice(index, delta, finish_reason)]))


__all__ = ["chat_completions", "template_message"]
