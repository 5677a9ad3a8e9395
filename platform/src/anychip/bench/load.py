"""Drive one run: closed-loop streams, or arrivals by a Poisson process. Knows when to send; knows no HTTP."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence

from anychip.bench.prompts import Prompt
from anychip.bench.record import Record

#: Sends one request: the prompt, the run's origin on the clock, when it was due.
Send = Callable[[Prompt, float, "float | None"], Awaitable[Record]]
Clock = Callable[[], float]
Done = Callable[[], None]


async def closed_loop(prompts: Sequence[Prompt], streams: int, send: Send, clock: Clock, done: Done) -> list[Record]:
    """As many streams as given, each sending its next request when its last one has ended."""
    origin_s = clock()
    waiting = iter(prompts)

    async def stream() -> list[Record]:
        records = []
        for prompt in waiting:
            records.append(await send(prompt, origin_s, None))
            done()
        return records

    return await _all([stream() for _ in range(min(streams, len(prompts)))])


async def poisson(
    prompts: Sequence[Prompt], due_s: Sequence[float], send: Send, clock: Clock, done: Done
) -> list[Record]:
    """Each request when it is due, however many still run."""
    origin_s = clock()

    async def later(prompt: Prompt, at_s: float) -> list[Record]:
        await asyncio.sleep(at_s - (clock() - origin_s))
        record = await send(prompt, origin_s, at_s)
        done()
        return [record]

    return await _all([later(prompt, at_s) for prompt, at_s in zip(prompts, due_s, strict=True)])


def arrivals(count: int, rate: float, seed: str) -> list[float]:
    """When requests are due, in seconds: independent exponential gaps with a mean of 1 / rate."""
    numbers = random.Random(seed)
    return list(itertools.accumulate(numbers.expovariate(rate) for _ in range(count)))


async def _all(streams: Sequence[Awaitable[list[Record]]]) -> list[Record]:
    """Run them together; when one fails or this is cancelled, none goes on."""
    tasks = [asyncio.ensure_future(stream) for stream in streams]
    try:
        return [record for records in await asyncio.gather(*tasks) for record in records]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["Clock", "Done", "Send", "arrivals", "closed_loop", "poisson"]
