"""Run one call's prompts on the engine and bring their text. Knows events, text and counts; knows no wire format."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from anychip.engine.mailbox import Generation
from anychip.engine.outputs import ChoiceAssembler, Splitter, TextDelta, Usage
from anychip.engine.request import FinishReason, GenerateRequest, SamplingParams, TokenEvent
from anychip.server.metrics import Metrics
from anychip.server.record import current
from anychip.server.settings import EngineAccess, TextTokenizer
from anychip_sdk.errors import AnychipError, EngineDead


class Prompt(NamedTuple):
    ids: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class Job:
    """What one call wants. Its choices are numbered prompt by prompt: `prompt * n + index`."""

    id: str
    prompts: list[Prompt]
    stops: list[str] = field(default_factory=list)
    skip_special: bool = True
    new_splitter: Callable[[], Splitter | None] = lambda: None
    namespace: str = ""


class ChoiceText(NamedTuple):
    """A whole choice, as a reply without a stream shows it."""

    text: str
    reasoning: str
    finish_reason: FinishReason
    stop: str | int | None


class Run:
    """A job that the engine has accepted; read it once, with `deltas` or `collect`, or close it."""

    def __init__(
        self, job: Job, generation: Generation, tokenizer: TextTokenizer, metrics: Metrics, arrival_s: float
    ) -> None:
        self.job = job
        self.usage = Usage()
        self._usages: list[Usage] = []
        self._finishes: dict[str, None] = {}  # each reason once, in order
        self._record = current()
        self._generation = generation
        self._metrics = metrics
        self._arrival_s = self._last_s = arrival_s
        self._had_tokens = False
        self._is_closed = False
        self._failure: FinishReason = "abort"  # of choices that have not ended when the job does
        self._open_choices: dict[str, int] = {}  # by request
        self._choices: dict[tuple[str, int], tuple[int, ChoiceAssembler]] = {}
        for prompt_index, prompt in enumerate(job.prompts):
            request_id = request_id_of(job, prompt_index)
            for index in range(prompt.params.n):
                assembler = ChoiceAssembler(
                    tokenizer.stream(job.skip_special), job.stops, job.new_splitter(), prompt.params.min_tokens
                )
                self._usages.append(Usage())
                self._choices[request_id, index] = (prompt_index * prompt.params.n + index, assembler)
            self._open_choices[request_id] = prompt.params.n
        metrics.requests.inc(len(job.prompts))

    @property
    def choices(self) -> int:
        return len(self._choices)

    def usage_of(self, choice: int) -> Usage:
        """The counts of one choice alone."""
        return self._usages[choice]

    async def deltas(self) -> AsyncIterator[list[TextDelta]]:
        """What has come, in batches; deltas that show nothing are left out. Leaving early aborts the job."""
        try:
            while any(self._open_choices.values()):
                events = await self._generation.next()
                if not events:
                    break
                if shown := self._take(events):
                    yield shown
        except AnychipError:
            self._failure = "error"
            raise
        finally:
            self.close()

    async def collect(self) -> list[ChoiceText]:
        """All choices, whole and in order."""
        texts: list[list[str]] = [[] for _ in self._choices]
        reasonings: list[list[str]] = [[] for _ in self._choices]
        ends: dict[int, TextDelta] = {}
        try:
            async for batch in self.deltas():
                for delta in batch:
                    texts[delta.choice].append(delta.text)
                    reasonings[delta.choice].append(delta.reasoning)
                    if delta.finish_reason is not None:
                        ends[delta.choice] = delta
        finally:
            self.close()
        return [
            ChoiceText("".join(texts[i]), "".join(reasonings[i]), ends[i].finish_reason or "stop", ends[i].stop)
            for i in range(len(texts))
        ]

    def close(self) -> None:
        """Abort what still runs and record the job; only the first call counts."""
        if self._is_closed:
            return
        self._is_closed = True
        if unfinished := sum(self._open_choices.values()):
            self._metrics.finished.labels(self._failure).inc(unfinished)
            self._metrics.aborted.inc(len(self._generation.request_ids))
            self._finishes[self._failure] = None
        self._generation.abort()
        self._metrics.e2e_s.observe(time.monotonic() - self._arrival_s)
        self._metrics.prompt_tokens.inc(self.usage.prompt_tokens)
        self._metrics.cached_tokens.inc(self.usage.cached_tokens)
        self._metrics.prompt_sizes.observe(self.usage.prompt_tokens)
        self._metrics.generation_sizes.observe(self.usage.completion_tokens)
        self._note()

    def _note(self) -> None:
        """Say in the request's line of the log what came of it."""
        record, usage = self._record, self.usage
        record.generation, record.finish = self.job.id, ",".join(self._finishes)
        record.prompt_tokens, record.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        record.cached_tokens = usage.cached_tokens

    def _take(self, events: list[TokenEvent]) -> list[TextDelta]:
        self._observe(events)
        shown = []
        for event in events:
            if event.finish_reason in {"error", "abort"}:
                raise failure_of(event)
            number, assembler = self._choices[event.request_id, event.index]
            if assembler.is_finished:  # a stop string ended it; its other tokens are nobody's
                continue
            delta = assembler.push(event)._replace(choice=number)
            self.usage.add(event, delta)
            self._usages[number].add(event, delta)
            if delta.finish_reason is not None:
                self._finishes[delta.finish_reason] = None
                self._end_choice(event, delta.finish_reason)
            if delta.text or delta.reasoning or delta.finish_reason is not None:
                shown.append(delta)
        return shown

    def _end_choice(self, event: TokenEvent, reason: FinishReason) -> None:
        self._open_choices[event.request_id] -= 1
        self._metrics.finished.labels(reason).inc()
        if event.finish_reason is None:  # a stop string ended it, which the engine doesn't know
            self._generation.stop(event.request_id, event.index)

    def _observe(self, events: list[TokenEvent]) -> None:
        tokens = sum(len(event.token_ids) for event in events)
        if not tokens:
            return
        now_s = time.monotonic()
        if self._had_tokens:
            choices = len({(event.request_id, event.index) for event in events})
            self._metrics.inter_token_s.observe((now_s - self._last_s) * choices / tokens)
        else:
            self._metrics.ttft_s.observe(now_s - self._arrival_s)
        self._had_tokens, self._last_s = True, now_s
        self._metrics.count_tokens(tokens)


def failure_of(event: TokenEvent) -> AnychipError:
    if event.finish_reason == "abort":
        return EngineDead(event.error or "the request was aborted")
    return AnychipError(event.error or "the engine failed")


def request_id_of(job: Job, prompt_index: int) -> str:
    """The engine's id of one prompt. It begins with the HTTP request's, so that the engine's log lines carry that."""
    id_ = job.id if len(job.prompts) == 1 else f"{job.id}-{prompt_index}"
    http_id = current().request_id
    return f"{http_id}/{id_}" if http_id else id_


async def start(job: Job, engine: EngineAccess, tokenizer: TextTokenizer, metrics: Metrics) -> Run:
    """Put the job into the engine's queue; raises what refuses it, before any of it has run on."""
    now_s = time.monotonic()
    requests = [
        GenerateRequest(request_id_of(job, index), prompt.ids, prompt.params, job.namespace, now_s)
        for index, prompt in enumerate(job.prompts)
    ]
    generation = await engine.open(requests)
    return Run(job, generation, tokenizer, metrics, now_s)


__all__ = ["ChoiceText", "Job", "Prompt", "Run", "failure_of", "start"]
