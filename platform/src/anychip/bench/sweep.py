"""Warm a service up and run every load several times. Knows the order of runs; knows no statistics of requests."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from anychip.bench.client import LoadClient, ServiceFacts
from anychip.bench.load import arrivals, closed_loop, poisson
from anychip.bench.prompts import make_prompts
from anychip.bench.record import NO_SLO, Record, Slo
from anychip.bench.result import Level, LevelResult, WarmUp
from anychip.bench.summary import RunSummary, figures, summarize
from anychip.bench.workload import PromptSection, Range, Workload
from anychip_sdk.errors import AnychipError, UsageError

WINDOWS_MIN, WINDOWS_MAX = 3, 10
STABLE_WITHIN = 0.1  #: of the median, over the last WINDOWS_MIN windows
WARM_UP_STREAMS = 4
FAILURES_SHOWN = 3


class LoadFailed(AnychipError):
    """So many requests failed that there is nothing to measure."""


class Listener(Protocol):
    """Whom the progress is told to."""

    def begin(self, requests: int) -> None: ...
    def enter(self, stage: str) -> None: ...
    def done(self) -> None: ...


@dataclass(frozen=True)
class Sweep:
    """What to run.

    Attributes:
        levels: the loads.
        repeats: how often each; a round runs all of them once, so that drift meets them alike.
        requests: in one run; None: as many as the workload says.
        seed: of prompts and arrivals.
        slo: for goodput.
        is_warmed_up: whether to warm up first.
        vocab_size: ids at random are below; None: as the service tells.
    """

    workload: Workload
    levels: tuple[Level, ...]
    repeats: int = 3
    requests: int | None = None
    seed: int = 0
    slo: Slo = NO_SLO
    is_warmed_up: bool = True
    vocab_size: int | None = None

    def requests_at(self, level: Level) -> int:
        streams = max(1, round(level.value)) if level.kind == "closed" else 1
        return self.requests or self.workload.requests_at(streams)


class Run(NamedTuple):
    """One load, run once."""

    level: Level
    records: Sequence[Record]
    summary: RunSummary


class Measured(NamedTuple):
    """All that was measured."""

    warm_up: WarmUp
    levels: tuple[LevelResult, ...]
    runs: Sequence[Run]

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong, each kind once, the first few."""
        return failures_of([record for run in self.runs for record in run.records])


async def measure(client: LoadClient, facts: ServiceFacts, sweep: Sweep, listener: Listener) -> Measured:
    """Warm up, then run every load `repeats` times.

    Raises:
        UsageError: the workload's requests are longer than the service's context.
        LoadFailed: every request of a run failed.
    """
    _require_room(sweep.workload, facts)
    if sweep.vocab_size is not None:
        facts = facts._replace(vocab_size=sweep.vocab_size)
    listener.begin(sweep.repeats * sum(map(sweep.requests_at, sweep.levels)))
    warm_up = await _warm_up(client, facts, sweep, listener) if sweep.is_warmed_up else WarmUp()
    runs = []
    for repeat in range(sweep.repeats):
        for level in sweep.levels:
            listener.enter(f"{level}, run {repeat + 1} of {sweep.repeats}")
            runs.append(await _run(client, facts, sweep, level, repeat, listener))
    levels = []
    for level in sweep.levels:
        summaries = tuple(run.summary for run in runs if run.level == level)
        levels.append(LevelResult(level, figures(summaries), summaries))
    return Measured(warm_up, tuple(levels), runs)


async def _run(
    client: LoadClient, facts: ServiceFacts, sweep: Sweep, level: Level, repeat: int, listener: Listener
) -> Run:
    count, seed = sweep.requests_at(level), f"{sweep.seed}/{level.kind}/{level.value:g}/{repeat}"
    prompts = await make_prompts(sweep.workload, count, seed, facts.vocab_size, client.tokenize)
    before = await client.cache_counts()
    if level.kind == "closed":
        streams = int(level.value)
        records = await closed_loop(prompts, streams, client.run, client.clock, listener.done)
    else:
        streams, due_s = 1, arrivals(count, level.value, seed)
        records = await poisson(prompts, due_s, client.run, client.clock, listener.done)
    _require_any(records)
    after = await client.cache_counts()
    rate = after.rate_since(before) if after is not None else None
    return Run(level, records, summarize(records, streams, sweep.slo, rate))


async def _warm_up(client: LoadClient, facts: ServiceFacts, sweep: Sweep, listener: Listener) -> WarmUp:
    """Short windows until the last ones are alike."""
    streams = min(WARM_UP_STREAMS, max(max(1, int(level.value)) for level in sweep.levels))
    room = facts.context_length or 4096
    own, output = min(64, room // 4), min(16, room // 4)
    prompt = PromptSection(own_tokens=Range(min=own, max=own))
    short = Workload(version=1, name="warm-up", prompt=prompt, output_tokens=Range(min=output, max=output))
    rates: list[float] = []
    while len(rates) < WINDOWS_MAX and not is_stable(rates):
        listener.enter(f"warm-up {len(rates) + 1}")
        seed = f"{sweep.seed}/warm-up/{len(rates)}"
        prompts = await make_prompts(short, streams, seed, facts.vocab_size, client.tokenize)
        records = await closed_loop(prompts, streams, client.run, client.clock, lambda: None)
        _require_any(records)
        rates.append(summarize(records, streams).output_tok_s)
    return WarmUp(tuple(rates), is_stable(rates))


def is_stable(rates: Sequence[float]) -> bool:
    """Whether the last windows are alike."""
    last = rates[-WINDOWS_MIN:]
    return len(last) == WINDOWS_MIN and max(last) - min(last) <= STABLE_WITHIN * statistics.median(last)


def failures_of(records: Sequence[Record]) -> tuple[str, ...]:
    """What went wrong, each kind once, the first few."""
    kinds = dict.fromkeys(record.error for record in records if record.error)
    return tuple(kinds)[:FAILURES_SHOWN]


def _require_any(records: Sequence[Record]) -> None:
    if not any(record.is_valid for record in records):
        raise LoadFailed(f"all {len(records)} requests of a run failed: {'; '.join(failures_of(records))}")


def _require_room(workload: Workload, facts: ServiceFacts) -> None:
    if facts.context_length is not None and workload.tokens_max > facts.context_length:
        raise UsageError(
            f"requests of workload '{workload.name}' have up to {workload.tokens_max} tokens, the context of "
            f"{facts.model} is {facts.context_length}",
            hint="take a workload with shorter requests, or serve with a larger model.context_length",
        )


__all__ = ["Listener", "LoadFailed", "Measured", "Run", "Sweep", "failures_of", "is_stable", "measure"]
