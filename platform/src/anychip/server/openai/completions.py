"""POST /v1/completions. Knows prompts in their four shapes and the completion wire format; knows no chat."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from anychip.engine.outputs import TextDelta
from anychip.server.errors import json_response
from anychip.server.generation import Job, Run
from anychip.server.openai.protocol import CompletionRequest
from anychip.server.openai.replies import TextChoice, TextReply, usage_reply
from anychip.server.openai.values import token_limit
from anychip.server.service import Service, new_id
from anychip.server.streaming import DONE, EventStream, frame, until_gone

#: OpenAI's default for this endpoint.
DEFAULT_MAX_TOKENS = 16


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await service.read(request, CompletionRequest)
    service.check_model(body.model)
    run = await service.start(await _job(service, body))
    head = (run.job.id, int(time.time()), service.model.served_name)
    if body.stream:
        return EventStream(_frames(run, head, include_usage=body.include_usage), run.close)
    reply = await until_gone(request, _whole(run, head))
    return Response(status_code=499) if reply is None else json_response(reply)


async def _job(service: Service, body: CompletionRequest) -> Job:
    max_tokens = token_limit(body.max_tokens, DEFAULT_MAX_TOKENS)
    prompts = await service.prompts(body.prompts, "prompt", body, max_tokens)
    return Job(new_id("cmpl"), prompts, body.stop, body.skip_special_tokens, namespace=service.settings.namespace)


async def _whole(run: Run, head: tuple[str, int, str]) -> TextReply:
    choices = [TextChoice(index, choice.text, choice.finish_reason) for index, choice in enumerate(await run.collect())]
    return TextReply(*head, choices, usage_reply(run.usage))


async def _frames(run: Run, head: tuple[str, int, str], *, include_usage: bool) -> AsyncIterator[bytes]:
    async for deltas in run.deltas():
        yield b"".join([frame(TextReply(*head, [_choice(delta)])) for delta in deltas])
    if include_usage:
        yield frame(TextReply(*head, [], usage_reply(run.usage)))
    yield DONE


def _choice(delta: TextDelta) -> TextChoice:
    return TextChoice(delta.choice, delta.text, delta.finish_reason)


__all__ = ["completions"]
