"""Measure a target and put the result together. Knows the parts; knows no command line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

from anychip.bench.client import LoadClient
from anychip.bench.environment import environment
from anychip.bench.memory import peak_rss_bytes
from anychip.bench.result import BenchResult, TargetFacts, WorkloadFacts
from anychip.bench.sweep import Listener, Run, Sweep, measure
from anychip.bench.target import Target
from anychip.bench.wire import Api


class Benched(NamedTuple):
    """A benchmark's result, and the requests that it sums up."""

    result: BenchResult
    runs: Sequence[Run]


def bench(target: Target, sweep: Sweep, listener: Listener, api: Api = Api.completions) -> Benched:
    """Measure; the target's objective counts where the sweep has none.

    Raises:
        PreconditionFailed: the target doesn't answer as it must.
        UsageError: the workload doesn't fit the service.
        LoadFailed: there is nothing to measure.
    """
    if sweep.slo.is_empty:
        sweep = replace(sweep, slo=target.slo)
    return asyncio.run(_bench(target, sweep, listener, api))


async def _bench(target: Target, sweep: Sweep, listener: Listener, api: Api) -> Benched:
    began_at, began_s = datetime.now(timezone.utc), time.perf_counter()
    surroundings = environment()
    async with LoadClient(target.url, api, target.api_key, trust=target.trust) as client:
        facts = await client.facts()
        measured = await measure(client, facts, sweep, listener)
    failures = measured.failures
    result = BenchResult(
        is_valid=not failures,
        failures=failures,
        target=TargetFacts(target.kind, target.name, target.url, facts.model, api.value, target.recipe_digest),
        workload=WorkloadFacts.of(sweep.workload),
        seed=sweep.seed,
        slo=sweep.slo,
        warm_up=measured.warm_up,
        levels=measured.levels,
        peak_rss_bytes=peak_rss_bytes(target.pid),
        service=facts.info,
        environment=surroundings,
        began_at=began_at.isoformat(timespec="seconds"),
        wall_s=time.perf_counter() - began_s,
    )
    return Benched(result, measured.runs)


__all__ = ["Benched", "bench"]
