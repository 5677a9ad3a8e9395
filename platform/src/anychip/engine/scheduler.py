"""Decide which tokens go through the model next. Knows tokens, pages and order; knows nothing of tensors or devices.

`schedule` makes the batch of one step, `commit` takes its tokens, in the same order; between the two `add`, `abort` and
`fail_all` may come and, with overlap, the `schedule` of the step behind (see `ahead`). A step computes every running
decode and up to `chunked_prefill_size` tokens of prompts, fewer where decodes run and the pace bounds them.

Memory. A prompt gets all its pages when it is admitted, a decode one page whenever it begins one. When pages run out,
unused prefixes are evicted, least recently used first; then the youngest sequence is retracted: its computed pages stay
in the cache as long as there is room, and it resumes from the front of the queue with the same output and seed.
A sequence that fills the whole pool ends with "length", so a lone one can always go on and every step makes progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from anychip.engine import invariants
from anychip.engine.acceptance import accept, event_of, fault_of
from anychip.engine.admission import OutputEstimate, SchedulerConfig, check_queue, running_limit, validate
from anychip.engine.ahead import following, obstacle
from anychip.engine.batch import Batch, Row
from anychip.engine.kv_tables import Copy, KVTables
from anychip.engine.pace import Pace
from anychip.engine.policy import make_policy
from anychip.engine.radix_cache import Match
from anychip.engine.request import FinishReason, GenerateRequest, TokenEvent
from anychip.engine.sequence import Sequence, State, completions
from anychip.engine.stats import Counters, SchedulerStats, snapshot
from anychip.engine.step_plan import Drawn
from anychip_sdk.errors import RequestInvalid
from anychip_sdk.kv import KVPool


class Scheduler:
    """Continuous batching over one KV pool. Not thread safe: the engine's loop is its only user.

    Raises:
        ValueError: the pool's page size is not the configuration's.
    """

    def __init__(self, config: SchedulerConfig, pool: KVPool, pace: Pace | None = None) -> None:
        if pool.layout.page_size != config.page_size:
            message = f"the pool's page size is {pool.layout.page_size}, the configuration's {config.page_size}"
            raise ValueError(message)
        config = self._config = replace(config, max_running_requests=running_limit(config, pool))
        self._pace = pace or Pace(None, config.chunked_prefill_size)
        self._tables = KVTables(pool, prefix_cache=config.prefix_cache)
        self._policy = make_policy(config, self._tables)
        # with one token more than the pool has slots, the sequence has used them all
        self._max_length = min(config.context_length, self._tables.pages_total * config.page_size + 1)
        self._estimate = OutputEstimate(self._max_length)
        self._waiting: deque[Sequence] = deque()
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._unfinished: dict[str, list[Sequence]] = {}  # by request id
        self._in_flight: deque[Batch] = deque()  # scheduled, not yet committed
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    def add(self, request: GenerateRequest) -> None:
        """Queue a request.

        Raises:
            RequestInvalid: it can never run, or its id is in use.
            QueueFull: it would have to wait, and too many wait already.
        """
        if request.id in self._unfinished:
            message = f"request id {request.id!r} is in use by an unfinished request"
            raise RequestInvalid(message, param="id")
        validate(request, self._config, self._tables.pages_total)
        running, places = self._prefilling + self._decoding, self._config.max_running_requests
        check_queue(request, running, self._waiting, places, self._config.max_queued_requests)
        self._counters.requests += 1
        members = completions(request, self._counters.requests, self._config.eos_token_ids)
        self._unfinished[request.id] = members
        self._waiting.append(members[0])

    def abort(self, request_id: str) -> list[TokenEvent]:
        """End a request, whatever its state; its pages are free, or evictable, at once. Unknown ids are no error."""
        sequences = self._unfinished.get(request_id, [])
        if sequences:
            self._counters.aborted += 1
        return [self._end(sequence, "abort").event([]) for sequence in list(sequences)]

    def stop(self, request_id: str, index: int) -> None:
        """End one completion as "stop", because a stop string is in its text; it is cached like any other.

        Its siblings go on. One that is unknown, ended already, or has said nothing yet stays as it is.
        """
        for sequence in list(self._unfinished.get(request_id, [])):
            if sequence.index == index and sequence.output_count:
                self._end(sequence, "stop")

    def fail_all(self, reason: str) -> list[TokenEvent]:
        """End every request with an error, and cache nothing of what was being computed."""
        self._in_flight.clear()
        self._tables.distrust_snapshots()
        sequences = [sequence for members in self._unfinished.values() for sequence in members]
        return [self._end(sequence, "error", keep=False).event([], error=reason) for sequence in sequences]

    def discard(self) -> None:
        """Forget the steps in flight, where nobody waits for a token of theirs: no work is left."""
        if not self.has_work:
            self._in_flight.clear()

    def schedule(self) -> Batch | None:
        """The work of the next step; None when there is none, or none before a step in flight is committed."""
        is_ahead, decodes = bool(self._in_flight), self._decoding
        if is_ahead:
            if not self._config.overlap:
                return None
            decodes = following(self._decoding, self._prefilling, self._max_length)
            if obstacle(self._in_flight, decodes, self._tables) is not None:
                return None
        self._estimate.step()
        retractions = self._counters.retractions
        copies = self._grow(decodes)
        rows = [Row(sequence, sequence.scheduled, 1, 1) for sequence in decodes]
        decode_rows = len(rows)
        budget = self._pace.prompt_tokens(decode_rows)
        for sequence in self._prefilling:
            if budget == 0:
                break
            if sequence.scheduled < len(sequence.tokens):
                budget -= self._add_chunk(rows, sequence, budget)
        # what was retracted just now would come straight back, unless nothing else is left to run
        if self._waiting and (not rows or retractions == self._counters.retractions):
            self._admit(rows, budget)
        if not rows:
            if not is_ahead:
                self._estimate.idle()
            return None
        for row in rows:
            row.sequence.scheduled = row.start + row.count
        self._counters.steps += 1
        self._counters.steps_ahead += is_ahead
        self._in_flight.append(Batch(tuple(rows), decode_rows, copies, self._tables.take_state_ops()))
        return self._in_flight[-1]

    def commit(self, batch: Batch, drawn: SequenceOf[Drawn]) -> list[TokenEvent]:
        """Take the tokens of a step.

        Args:
            drawn: for each row in order, as many as it samples; rows of sequences aborted meanwhile too.

        Raises:
            ValueError: it isn't what the batch, which must be the first in flight, is to be answered with.
        """
        if not self._in_flight or batch is not self._in_flight[0]:
            message = "commit() expects the batch that schedule() returned first of those not committed yet"
            raise ValueError(message)
        if len(drawn) != batch.samples:
            message = f"commit() expects {batch.samples} draws for this batch, got {len(drawn)}"
            raise ValueError(message)
        self._in_flight.popleft()
        events: list[TokenEvent] = []
        decodes = batch.decode_rows  # of one draw each
        for row, one in zip(batch.rows[:decodes], drawn, strict=False):
            sequence = row.sequence
            if sequence.state is not State.FINISHED:
                sequence.computed = row.start + 1
                self._accept(sequence, one, events)
        position = decodes
        for row in batch.rows[decodes:]:
            first, position = position, position + row.samples
            if row.sequence.state is State.FINISHED:
                continue
            row.sequence.computed = row.end
            sampled = row.sampled
            self._end_chunk(row)
            for sequence, one in zip(sampled, drawn[first:position], strict=True):
                if sequence.state is not State.FINISHED:
                    self._accept(sequence, one, events)
        return events

    def flush_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing is changed, while there is work."""
        if self.has_work:
            return False
        self._tables.flush()
        return True

    def stats(self) -> SchedulerStats:
        running = len(self._prefilling) + len(self._decoding)
        return snapshot(self._tables, self._counters, running=running, waiting=len(self._waiting))

    def check_invariants(self) -> None:
        """Raises InvariantBroken with everything that is wrong. Walks all pages: for tests and idle times."""
        invariants.check(self._tables, self._prefilling + self._decoding, self._waiting)

    def _grow(self, decodes: list[Sequence]) -> tuple[Copy, ...]:
        """Give each decode the place for its next token, after retracting as many sequences as that takes."""
        tables = self._tables
        growing = [sequence for sequence in decodes if sequence.scheduled >= sequence.owned]
        if not growing:
            return ()
        # first all retractions, then all allocations: no page is both given up and copied to in one step
        while tables.growth(growing) > tables.pages_available:  # never while a step is in flight
            youngest = max([*self._prefilling, *self._decoding], key=lambda s: (s.order, s.index))
            self._retract(youngest)
            growing = [sequence for sequence in growing if sequence is not youngest]
        grown = [tables.grow(sequence) for sequence in growing]
        return tuple(copy for copy in grown if copy is not None)

    def _retract(self, sequence: Sequence) -> None:
        self._counters.retractions += 1
        self._estimate.retracted()
        self._tables.close(sequence, keep=True)
        self._running_list(sequence).remove(sequence)
        sequence.state = State.WAITING
        sequence.matched_version = -1
        self._waiting.appendleft(sequence)

    def _admit(self, rows: list[Row], budget: int) -> None:
        """Begin waiting sequences until the step, the rows or the memory is full; the first too many ends it."""
        running, is_ahead = self._prefilling + self._decoding, bool(self._in_flight)
        page_size = self._config.page_size
        rows_free = self._config.max_running_requests - sum(sequence.width for sequence in running)
        if budget == 0 or rows_free <= 0:
            return
        reserved = sum(self._estimate.pages(sequence, len(sequence.pages), page_size) for sequence in running)
        for sequence in self._policy.order(self._waiting):
            if budget == 0 or sequence.width > rows_free:
                return
            match = self._tables.match(sequence)
            if self._policy.defers(sequence, match, self._prefilling):
                continue
            future = self._estimate.pages(sequence, self._tables.pages_needed(len(sequence.tokens)), page_size)
            needed = self._tables.opening_pages(sequence, match) + future + reserved
            if (rows or is_ahead) and needed > self._tables.pages_available:  # alone it fits: see `_max_length`
                return
            self._begin(sequence, match)
            reserved += future
            rows_free -= sequence.width
            budget -= self._add_chunk(rows, sequence, budget)

    def _begin(self, sequence: Sequence, match: Match) -> None:
        self._tables.open(sequence, match)
        self._waiting.remove(sequence)
        self._prefilling.append(sequence)
        sequence.state = State.RUNNING
        if sequence.is_admitted_before:
            return  # what it finds of its own now is no hit
        for member in (sequence, *sequence.forks):
            member.is_admitted_before = True
            member.cached_tokens = match.pages * self._config.page_size
        self._counters.prompt_tokens += sequence.prompt_len
        self._counters.cached_tokens += sequence.cached_tokens
        for other in self._waiting:
            if other.order < sequence.order:
                other.overtaken += 1

    def _add_chunk(self, rows: list[Row], sequence: Sequence, budget: int) -> int:
        length = len(sequence.tokens)
        start = sequence.scheduled
        end = self._tables.chunk_end(sequence, min(length, start + budget))
        count = end - start
        rows.append(Row(sequence, start, count, sequence.width if end == length else 0))
        return count

    def _end_chunk(self, row: Row) -> None:
        sequence = row.sequence
        self._tables.publish(sequence)
        self._tables.snapshot(sequence)
        if row.samples == 0:
            return
        self._prefilling.remove(sequence)
        self._decoding.append(sequence)
        for fork in sequence.forks:
            self._tables.share(sequence, fork)
            fork.state = State.RUNNING
            self._decoding.append(fork)
        sequence.forks = []

    def _accept(self, sequence: Sequence, drawn: Drawn, events: list[TokenEvent]) -> None:
        if not drawn.tokens:
            events += self._fail(sequence)
            return
        count, reason = accept(sequence, drawn.tokens, self._max_length, self._config.page_size)
        self._counters.completion_tokens += count
        if reason is not None:
            self._end(sequence, reason)
        events.append(event_of(sequence, drawn, count, reason))

    def _fail(self, sequence: Sequence) -> list[TokenEvent]:
        """End a request whose logits are not finite, all its completions, and cache nothing that they computed.

        Nor is what they found in the cache trusted any longer, unless the request may itself be the cause.
        """
        self._counters.failed += 1
        reason = fault_of(sequence)
        page = sequence.cached_tokens // self._config.page_size if sequence.request.params.is_adjusted else 0
        self._tables.distrust(sequence, page, self._prefilling + self._decoding)
        members = list(self._unfinished[sequence.id])
        return [self._end(one, "error", keep=False).event([], error=reason) for one in members]

    def _end(self, sequence: Sequence, reason: FinishReason, *, keep: bool = True) -> Sequence:
        if sequence.state is State.RUNNING:
            self._tables.close(sequence, keep=keep)
            self._running_list(sequence).remove(sequence)
        elif sequence in self._waiting:  # the forks of a waiting sequence are not
            self._waiting.remove(sequence)
        sequence.state = State.FINISHED
        sequence.finish_reason = reason
        self._counters.finished += reason in ("stop", "length")
        members = self._unfinished[sequence.id]
        members.remove(sequence)
        if not members:
            del self._unfinished[sequence.id]
        return sequence

    def _running_list(self, sequence: Sequence) -> list[Sequence]:
        return self._prefilling if sequence in self._prefilling else self._decoding


__all__ = ["Scheduler", "SchedulerConfig", "SchedulerStats"]
