"""Sum the requests of one run up, and the runs of one load. Knows statistics; knows no clock and no HTTP."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import msgspec

from anychip.bench.record import NO_SLO, Record, Slo

#: A percentile is told only where so many values lie beyond it: fewer are an anecdote.
BEYOND_MIN = 10


class Distribution(msgspec.Struct, frozen=True):
    """Values of one kind; percentiles are None where too few values lie beyond them."""

    count: int
    mean: float
    min: float
    p50: float
    p90: float | None
    p95: float | None
    p99: float | None
    max: float


class Goodput(msgspec.Struct, frozen=True):
    """Requests that met every limit of the service-level objective."""

    requests_per_s: float
    fraction: float


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run: all requests of one load, once."""

    requests: int
    failed: int
    wall_s: float  #: from the first request due to the last token
    prompt_tokens: int
    output_tokens: int
    output_tok_s: float
    total_tok_s: float
    requests_per_s: float
    ttft_s: Distribution | None  #: None: no request succeeded
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    ttft_first_wave_s: float | None  #: median of the requests sent first, as many as there were streams
    ttft_later_s: float | None  #: median of all others
    tokens_per_event: float | None
    cached_fraction: float | None  #: of prompt tokens, as the answers tell
    cache_hit_rate: float | None  #: the same, as the service's metrics tell
    goodput: Goodput | None  #: None: there is no objective


class Spread(msgspec.Struct, frozen=True):
    """One figure over repeated runs."""

    median: float
    min: float
    max: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A load's figures over its runs; None where a run has none."""

    output_tok_s: Spread | None
    total_tok_s: Spread | None
    requests_per_s: Spread | None
    ttft_p50_s: Spread | None
    ttft_min_s: Spread | None
    ttft_max_s: Spread | None
    ttft_first_wave_s: Spread | None
    ttft_later_s: Spread | None
    tpot_p50_s: Spread | None
    itl_p50_s: Spread | None
    itl_p99_s: Spread | None
    e2e_p50_s: Spread | None
    cache_hit_rate: Spread | None
    goodput_requests_per_s: Spread | None
    goodput_fraction: Spread | None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, interpolated between neighbours."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def distribution(values: Iterable[float]) -> Distribution | None:
    """None where there is no value."""
    ordered = sorted(values)
    if not ordered:
        return None
    count = len(ordered)

    def told(share: float) -> float | None:
        return percentile(ordered, share) if count * (1 - share) >= BEYOND_MIN - 1e-9 else None

    mean, p50 = statistics.fmean(ordered), percentile(ordered, 0.5)
    return Distribution(count, mean, ordered[0], p50, told(0.9), told(0.95), told(0.99), ordered[-1])


def summarize(
    records: Sequence[Record], streams: int, slo: Slo = NO_SLO, cache_hit_rate: float | None = None
) -> RunSummary:
    """Sum one run up.

    Args:
        records: of all its requests.
        streams: how many were sent at once at the beginning.
        slo: for goodput.
        cache_hit_rate: what the service's metrics say of this run.
    """
    good = sorted((record for record in records if record.is_valid), key=lambda record: record.sent_s)
    wall_s = max(record.end_s for record in records) - min(record.scheduled_s for record in records)
    prompt_tokens, output_tokens = sum(r.prompt_tokens for r in good), sum(r.output_tokens for r in good)
    per_s = 1 / wall_s if wall_s > 0 else 0.0
    ttft_s = [record.ttft_s for record in good]
    events = sum(len(record.event_s) for record in good)
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    met = sum(slo.is_met(record) for record in records)
    return RunSummary(
        requests=len(records),
        failed=len(records) - len(good),
        wall_s=wall_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tok_s=output_tokens * per_s,
        total_tok_s=(prompt_tokens + output_tokens) * per_s,
        requests_per_s=len(good) * per_s,
        ttft_s=distribution(ttft_s),
        tpot_s=distribution(tpot for record in good if (tpot := record.tpot_s) is not None),
        itl_s=distribution(gap for record in good for gap in record.gaps_s),
        e2e_s=distribution(record.e2e_s for record in good),
        ttft_first_wave_s=_median(ttft_s[:streams]),
        ttft_later_s=_median(ttft_s[streams:]),
        tokens_per_event=output_tokens / events if events else None,
        cached_fraction=sum(cached) / prompt_tokens if cached and prompt_tokens else None,
        cache_hit_rate=cache_hit_rate,
        goodput=None if slo.is_empty else Goodput(met * per_s, met / len(records)),
    )


def figures(runs: Sequence[RunSummary]) -> Figures:
    """The figures of one load over its runs."""
    return Figures(
        output_tok_s=spread(run.output_tok_s for run in runs),
        total_tok_s=spread(run.total_tok_s for run in runs),
        requests_per_s=spread(run.requests_per_s for run in runs),
        ttft_p50_s=spread(run.ttft_s.p50 if run.ttft_s else None for run in runs),
        ttft_min_s=spread(run.ttft_s.min if run.ttft_s else None for run in runs),
        ttft_max_s=spread(run.ttft_s.max if run.ttft_s else None for run in runs),
        ttft_first_wave_s=spread(run.ttft_first_wave_s for run in runs),
        ttft_later_s=spread(run.ttft_later_s for run in runs),
        tpot_p50_s=spread(run.tpot_s.p50 if run.tpot_s else None for run in runs),
        itl_p50_s=spread(run.itl_s.p50 if run.itl_s else None for run in runs),
        itl_p99_s=spread(run.itl_s.p99 if run.itl_s else None for run in runs),
        e2e_p50_s=spread(run.e2e_s.p50 if run.e2e_s else None for run in runs),
        cache_hit_rate=spread(run.cache_hit_rate for run in runs),
        goodput_requests_per_s=spread(run.goodput.requests_per_s if run.goodput else None for run in runs),
        goodput_fraction=spread(run.goodput.fraction if run.goodput else None for run in runs),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """None where a value is missing."""
    known = list(values)
    found = [value for value in known if value is not None]
    return Spread(statistics.median(found), min(found), max(found)) if found and len(found) == len(known) else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


__all__ = [
    "BEYOND_MIN",
    "Distribution",
    "Figures",
    "Goodput",
    "RunSummary",
    "Spread",
    "distribution",
    "figures",
    "percentile",
    "spread",
    "summarize",
]
