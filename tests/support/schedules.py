"""Drive a scheduler with the fake model, and compare what comes out with the pure function. Knows no tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from anychip.engine.admission import SchedulerConfig
from anychip.engine.batch import Batch
from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent
from anychip.engine.scheduler import Scheduler
from anychip.engine.step_plan import Drawn
from support.fake_pool import FakeModel, FakePool, expected_output

VOCAB = 11
EOS = 3


def config(**changes: Any) -> SchedulerConfig:
    values: dict[str, Any] = {
        "chunked_prefill_size": 64,
        "max_running_requests": 8,
        "max_queued_requests": 100,
        "policy": "fcfs",
        "prefix_cache": True,
        "context_length": 1000,
        "page_size": 4,
        "vocab_size": VOCAB,
        "eos_token_ids": (EOS,),
        **changes,
    }
    return SchedulerConfig(**values)


class Bench:
    """A scheduler, its pool, its model and all that came out of them."""

    def __init__(self, settings: SchedulerConfig, pages: int, ahead: int = 1, slots: int = 0) -> None:
        self.settings = settings
        self.pool = FakePool(pages, settings.page_size, slots)
        self.model = FakeModel(self.pool, settings.vocab_size, ahead)
        self.scheduler = Scheduler(settings, self.pool)
        self.requests: dict[str, GenerateRequest] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.last: dict[tuple[str, int], TokenEvent] = {}
        self.flights: deque[tuple[Batch, Callable[[], list[Drawn]]]] = deque()  # submitted, not yet run

    def be_hopeful(self) -> None:
        """Admit as if outputs were nearly always short, so that memory runs out and sequences are retracted."""
        estimate = self.scheduler._estimate
        estimate.EXACT = 1
        estimate.START = estimate.FLOOR = estimate.ratio = 0.05
        estimate.AFTER_RETRACTION = 0.0

    def add(self, name: str, prompt: Sequence[int], *, namespace: str = "", **params: Any) -> None:
        params = {"seed": 7, "ignore_eos": True, **params}
        request = GenerateRequest(name, list(prompt), SamplingParams(**params), namespace=namespace)
        self.scheduler.add(request)
        self.requests[name] = request

    def step(self, between: Callable[[], object] | None = None) -> Batch | None:
        """One step; `between` runs while the batch is in flight, with overlap perhaps another behind it."""
        if not self.flights:
            self.submit()
        if not self.flights:
            assert not self.scheduler.has_work
            return None
        self.submit()
        return self.commit(between)

    def commit(self, between: Callable[[], object] | None = None) -> Batch:
        """Run the first step in flight and take its tokens."""
        batch, run = self.flights.popleft()
        drawn = run()  # as late as can be: what it writes comes after all that the host did to its books meanwhile
        if between is not None:
            between()
            self.scheduler.check_invariants()
        self.take(self.scheduler.commit(batch, drawn))
        self._drop_idle()
        self.scheduler.check_invariants()
        return batch

    def submit(self) -> None:
        """Schedule what can be scheduled now."""
        batch = self.scheduler.schedule()
        self.scheduler.check_invariants()
        if batch is not None:
            self.flights.append((batch, self.model.submit(batch)))

    def _drop_idle(self) -> None:
        """Nobody waits for the steps in flight; the device runs them all the same."""
        if not self.scheduler.has_work:
            self.scheduler.discard()
            while self.flights:
                self.flights.popleft()[1]()

    def take(self, events: list[TokenEvent]) -> None:
        for event in events:
            key = (event.request_id, event.index)
            assert key not in self.last or self.last[key].finish_reason is None, "an event after the end"
            assert 0 <= event.cached_tokens < event.prompt_tokens
            self.tokens.setdefault(key, []).extend(event.token_ids)
            self.last[key] = event

    def abort(self, name: str) -> list[TokenEvent]:
        events = self.scheduler.abort(name)
        self.take(events)
        self.scheduler.check_invariants()
        return events

    def stop(self, name: str, index: int) -> None:
        """End one completion by what its reader knows; its last event stays one without a reason."""
        self.scheduler.stop(name, index)
        self.scheduler.check_invariants()

    def drain(self, limit: int = 100_000) -> int:
        """Step until no work is left; the number of steps."""
        for count in range(limit):
            if self.step() is None:
                return count
        message = f"not done after {limit} steps"
        raise AssertionError(message)

    def expected(self, name: str, index: int = 0) -> tuple[list[int], str]:
        request = self.requests[name]
        slots = self.pool.layout.pages * self.settings.page_size
        return expected_output(
            request.prompt_ids,
            request.params,
            index,
            vocab_size=self.settings.vocab_size,
            max_length=min(self.settings.context_length, slots + 1),
            eos_token_ids=self.settings.eos_token_ids,
        )

    def check_outputs(self) -> None:
        """Every completion has ended, as the model alone would have; aborted ones have a beginning of it."""
        for name, request in self.requests.items():
            for index in range(request.params.n):
                tokens, reason = self.expected(name, index)
                last = self.last[name, index]
                found = self.tokens[name, index]
                if last.finish_reason in {"abort", None}:
                    assert found == tokens[: len(found)]
                else:
                    assert (found, last.finish_reason) == (tokens, reason)
                    assert last.completion_tokens == len(tokens) + (reason == "stop")

    def check_empty(self) -> None:
        """After a flush every page and slot is free."""
        assert self.scheduler.flush_cache()
        self.scheduler.check_invariants()
        assert self.pool.stats().pages_free == self.pool.layout.pages
        slots = self.scheduler._tables.slots
        assert slots is None or slots.ledger.slots_free == self.pool.layout.slots
