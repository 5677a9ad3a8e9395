"""What all endpoints share: the model served, the engine, and the way from a request to a run. Knows no endpoint."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import TypeVar

from anychip.engine.messages import ModelFacts
from anychip.server.generation import Job, Run, start
from anychip.server.metrics import Metrics
from anychip.server.params import checked_ids
from anychip.server.settings import EngineAccess, PromptTemplate, ServerSettings, TextTokenizer
from anychip.text.thinking import NO_THINKING, TemplateThinking
from anychip_sdk.errors import EngineDead, RequestInvalid

#: Longer texts are tokenised in a thread, so that running streams don't wait for them.
INLINE_CHARS = 4096

#: Of one request, over all of its prompts.
MAX_CHOICES = 1024

T = TypeVar("T")


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

    async def encode(self, prompt: str | list[int], param: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a prompt, at least one."""
        if isinstance(prompt, str):
            ids = await run_off_loop(len(prompt), lambda: self.tokenizer.encode(prompt, add_special))
        else:
            ids = list(checked_ids(prompt, param, self.model.vocab_size))
        if not ids:
            raise RequestInvalid(f"{param}: the prompt has no tokens", param=param)
        return ids

    async def start(self, job: Job) -> Run:
        if self.is_draining:
            raise EngineDead("the service is shutting down")
        choices = sum(prompt.params.n for prompt in job.prompts)
        if choices > MAX_CHOICES:
            raise RequestInvalid(f"n: {choices} choices in one request; at most {MAX_CHOICES}", param="n")
        return await start(job, self.engine, self.tokenizer, self.metrics)

    def drain(self) -> None:
        """Take no more requests; running ones go on."""
        self.is_draining = True

    def end_all(self) -> None:
        """End running requests with an error."""
        self.is_draining = True
        self.engine.fail_all(EngineDead("the service is shutting down"))


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """Run the work here where it is small, otherwise in a thread."""
    return work() if size <= INLINE_CHARS else await asyncio.to_thread(work)


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


__all__ = ["Service", "new_id", "run_off_loop"]
