"""What all endpoints share: the model served, the engine, and the way from a request to a run. Knows no endpoint."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request

from anychip.engine.messages import ModelFacts
from anychip.server.body import read_body
from anychip.server.body_shape import over_limit
from anychip.server.fields import Body
from anychip.server.generation import Job, Prompt, Run, start
from anychip.server.json_reader import JsonReader
from anychip.server.metrics import Metrics
from anychip.server.offload import Offload
from anychip.server.openai.protocol import SamplingBody
from anychip.server.params import checked_ids, room_for, sampling_params
from anychip.server.settings import EngineAccess, PromptTemplate, ServerSettings, TextTokenizer
from anychip.text.thinking import NO_THINKING, TemplateThinking
from anychip_sdk.errors import EngineDead, RequestInvalid

B = TypeVar("B", bound=Body)


class Service:
    """One served model."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: EngineAccess,
        tokenizer: TextTokenizer,
        template: PromptTemplate | None = None,
        thinking: TemplateThinking = NO_THINKING,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.tokenizer = tokenizer
        self.template = template
        self.thinking = thinking
        self.metrics = Metrics()
        self.offload = Offload()
        self.json = JsonReader(settings.limits)
        self.is_draining = False
        self.is_idle = asyncio.Event()  #: no request is being answered, but for probes
        self.is_idle.set()

    @property
    def state(self) -> str:
        return "stopping" if self.is_draining else self.engine.state

    @property
    def model(self) -> ModelFacts:
        """What the worker that became ready last said of its model."""
        if self.engine.model is None:
            raise EngineDead("the model is still loading")
        return self.engine.model

    @property
    def names(self) -> tuple[str, ...]:
        """What requests may call the model."""
        return (self.model.served_name, *self.settings.aliases)

    def check_model(self, name: str | None) -> None:
        """An absent name is the served model; any other must be one of its names."""
        if name is not None and name not in self.names:
            served = ", ".join(self.names)
            raise RequestInvalid(
                f"model {name[:100]!r} does not exist; served here: {served}",
                param="model",
                code="model_not_found",
                status=404,
            )

    async def read(self, request: Request, model: type[B]) -> B:
        """A request's body; see `read_body`."""
        return await read_body(request, model, self.settings.limits, self.offload, self.json)

    async def encode(self, prompt: str | list[int], param: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a prompt, at least one; raises RequestInvalid where the context can't hold them."""
        model = self.model
        return await self.offload.run(len(prompt), lambda: self._encoded(prompt, param, add_special, model))

    async def prompts(
        self, given: Sequence[str] | Sequence[list[int]], param: str, body: SamplingBody, max_tokens: int | None
    ) -> list[Prompt]:
        """The prompts of a request in tokens, each with its parameters."""
        model, defaults = self.model, self.settings.sampling_defaults

        def made() -> list[Prompt]:
            ids = [self._encoded(prompt, param, True, model) for prompt in given]
            params = sampling_params(body, max_tokens, [len(one) for one in ids], model, defaults)
            return [Prompt(*one) for one in zip(ids, params, strict=True)]

        return await self.offload.run(sum(map(len, given)), made)

    def _encoded(self, prompt: str | list[int], param: str, add_special: bool, model: ModelFacts) -> list[int]:
        """What can't fit whatever its tokens are is refused before any is looked for."""
        if isinstance(prompt, str):
            room_for(self.tokenizer.tokens_at_least(prompt), param, model, "at least ")
            ids = self.tokenizer.encode(prompt, add_special)
            room_for(len(ids), param, model)  # here, as further prompts may follow
        else:
            room_for(len(prompt), param, model)
            ids = list(checked_ids(prompt, param, model.vocab_size))
        if not ids:
            raise RequestInvalid(f"{param}: the prompt has no tokens", param=param)
        return ids

    async def start(self, job: Job) -> Run:
        if self.is_draining:
            raise EngineDead("the service is shutting down")
        choices = sum(prompt.params.n for prompt in job.prompts)
        limit = self.settings.limits.choices
        if choices > limit:
            raise over_limit("choices", limit, f"n: {choices} choices in one request", param="n")
        return await start(job, self.engine, self.tokenizer, self.metrics)

    def drain(self) -> None:
        """Take no more requests; running ones go on."""
        self.is_draining = True

    def end_all(self) -> None:
        """End running requests with an error."""
        self.is_draining = True
        self.engine.fail_all(EngineDead("the service is shutting down"))


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


__all__ = ["Service", "new_id"]
