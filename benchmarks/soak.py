"""Many requests on one service, some of them given up: are outputs mixed, pages lost, or does memory grow?

Knows HTTP and two processes; knows no engine.

    python benchmarks/soak.py [--requests 10000 | --minutes 15] [--concurrency 64] [--recipe FILE] [--seed 0]

Without --recipe it serves a tiny random model with a pool that is too small for the load, so that prefixes are evicted
and requests retracted. First each of a few hundred requests is answered alone; then they are sent again and again,
together, and a part of the clients leave before the end. It prints, and exits with 1 if one is not as it must be:

- outputs that differ from the answer to the same request alone (0), and what was refused or failed (0);
- pages that are neither free nor cached at the end (0);
- the growth of the resident memory of worker and server in MB per 1,000 requests, behind the first 2,000 (under 1).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from service_process import Service, running

ROOT = Path(__file__).parents[1]
RECIPE = """
version: 1
name: soak
model: {{source: {folder}, dtype: float32}}
backend: {{name: cpu, threads: 1}}
memory: {{kv_tokens: 4096, page_size: 16}}
scheduler: {{max_running_requests: 32, chunked_prefill_size: 128}}
"""
LINES = 300  #: different requests
SETTLED = 2000  #: requests before memory is expected to stay as it is
SLOPE_MAX_MB = 1.0  #: per 1,000 requests
COURSE = 20  #: figures that show how memory went
SAMPLE_S = 0.5  #: between two looks at memory
ANSWER_S = 300.0  #: the longest that a request may take

Body = dict[str, Any]


class Sample(NamedTuple):
    """Resident memory at a time, in MB."""

    done: int  #: requests
    worker: float
    server: float


class Outcome(NamedTuple):
    """What became of a load."""

    counts: Counter[str]
    samples: list[Sample]
    seconds: float


def make_recipe(folder: Path) -> str:
    """A tiny random model with a tokenizer, and a recipe that serves it."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.tiny_models import make_tiny

    make_tiny(folder / "model", "llama", tokenizer=True)
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder / "model"), encoding="utf-8")
    return str(path)


def make_bodies(count: int, seed: int) -> list[Body]:
    """Requests of all kinds; many begin alike."""
    chance = random.Random(seed)
    heads = [[chance.randrange(3, 500) for _ in range(size)] for size in (0, 24, 70)]
    kinds: Sequence[Body] = (
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 20, "min_p": 0.02},
        {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
        {"temperature": 0.7, "logit_bias": {str(chance.randrange(3, 500)): 5.0 for _ in range(50)}},
        {"temperature": 0.9, "n": 2},
        {"temperature": 0.9, "min_tokens": 5, "stop_token_ids": list(range(3, 500, 9)), "ignore_eos": False},
        {"temperature": 1.0, "stop": ["a", "e"]},
    )
    bodies = []
    for number in range(count):
        prompt = chance.choice(heads) + [chance.randrange(3, 500) for _ in range(chance.randrange(1, 120))]
        kind = kinds[number % len(kinds)]
        sampling = {"ignore_eos": True, "max_new_tokens": chance.randrange(5, 40), "seed": number, **kind}
        bodies.append({"input_ids": prompt, "sampling_params": sampling})
    return bodies


class Client:
    """Sends bodies to one service, a connection for each. Failures and refusals are answers too."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._place = host, int(port)

    async def answer(self, body: Body) -> str:
        """The reply without what differs from call to call."""
        status, text = await asyncio.wait_for(self._exchange(body), ANSWER_S)
        if status != 200:
            return f"{status} {text}"
        replies = json.loads(text)
        return json.dumps([one["text"] for one in (replies if isinstance(replies, list) else [replies])])

    async def leave(self, body: Body, events: int) -> str:
        """Read so many events of a stream and close the connection; the status line."""
        reader, writer = await self._send({**body, "stream": True})
        try:
            status = (await reader.readline()).decode().strip()
            for _ in range(events):
                await asyncio.wait_for(reader.readline(), ANSWER_S)
            return status
        finally:
            writer.close()

    async def _exchange(self, body: Body) -> tuple[int, str]:
        reader, writer = await self._send(body)
        try:
            reply = await reader.read()
        finally:
            writer.close()
        head, _, content = reply.partition(b"\r\n\r\n")
        return int(head.split()[1]), content.decode()

    async def _send(self, body: Body) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._place)
        content = json.dumps(body).encode()
        head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return reader, writer


class Load:
    """The same requests again and again, several at a time, until it is enough."""

    def __init__(self, service: Service, bodies: Sequence[Body], seed: int) -> None:
        self._service = service
        self._client = Client(service.url)
        self._bodies = bodies
        self._chance = random.Random(seed + 1)
        self._counts: Counter[str] = Counter()
        self._alone: list[str] = []
        self._done = 0

    async def run(self, concurrency: int, is_enough: Callable[[int, float], bool]) -> Outcome:
        """Answers alone first, then the load."""
        self._alone = [await self._client.answer(body) for body in self._bodies]
        if refused := [one for one in self._alone if not one.startswith("[")]:
            raise SystemExit(f"{len(refused)} of {len(self._bodies)} requests are refused by themselves: {refused[0]}")
        started_s = time.monotonic()
        watch = asyncio.create_task(self._watch())

        async def one_after_the_other() -> None:
            while not is_enough(self._done, time.monotonic() - started_s):
                self._done += 1
                await self._one()

        await asyncio.gather(*(one_after_the_other() for _ in range(concurrency)))
        watch.cancel()
        return Outcome(self._counts, self._samples, time.monotonic() - started_s)

    async def _one(self) -> None:
        number = self._chance.randrange(len(self._bodies))
        body = self._bodies[number]
        if self._chance.random() < 0.3:
            status = await self._client.leave(body, self._chance.randrange(0, 30))
            self._counts["left" if " 200 " in f"{status} " else f"left: {status}"] += 1
            return
        found = await self._client.answer(body)
        self._counts["equal" if found == self._alone[number] else "different"] += 1
        if found != self._alone[number] and self._counts["different"] <= 3:
            print(f"request {number}: alone {self._alone[number]!r}, now {found!r}", file=sys.stderr)

    async def _watch(self) -> None:
        self._samples: list[Sample] = []
        while True:
            self._samples.append(
                Sample(self._done, _resident_mb(self._service.worker), _resident_mb(self._service.server))
            )
            await asyncio.sleep(SAMPLE_S)


def _resident_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6


def slope(samples: Sequence[Sample], values: Sequence[float]) -> float:
    """MB per 1,000 requests, of the line through the samples; 0 where there are too few."""
    done = np.array([one.done for one in samples])
    return float(np.polyfit(done / 1000, np.array(values), 1)[0]) if len(set(done)) > 2 else 0.0


def pages_in_use(url: str, limit_s: float = 30.0) -> float:
    """Pages that are neither free nor cached when the last request has ended."""
    ends_s = time.monotonic() + limit_s
    while True:
        with urllib.request.urlopen(url + "/server_info") as reply:
            stats = json.load(reply)["stats"]
        in_use = float(stats["pages_total"] - stats["pages_free"] - stats["pages_evictable"])
        if (in_use == 0 and stats["running"] == stats["waiting"] == 0) or time.monotonic() > ends_s:
            return in_use
        time.sleep(0.1)


def report(outcome: Outcome, in_use: float) -> bool:
    """Print the findings; whether all is as it must be."""
    counts = ", ".join(f"{count} {what}" for what, count in sorted(outcome.counts.items()))
    print(f"{sum(outcome.counts.values())} requests in {outcome.seconds:.0f} s: {counts}")
    print(f"pages neither free nor cached at the end: {in_use:g}")
    settled = [one for one in outcome.samples if one.done >= SETTLED]
    is_well = in_use == 0 and set(outcome.counts) <= {"equal", "left"}
    for name in ("worker", "server"):
        values = [getattr(one, name) for one in outcome.samples]
        growth = slope(settled, [getattr(one, name) for one in settled])
        is_well &= growth < SLOPE_MAX_MB
        course = " ".join(f"{value:.1f}" for value in values[:: max(1, len(values) // COURSE)])
        print(f"{name}: {growth:+.2f} MB per 1,000 requests behind the first {SETTLED}; from start to end: {course}")
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, help="in place of a number of requests")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--recipe", help="in place of the tiny model's")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    def is_enough(done: int, seconds: float) -> bool:
        return done >= options.requests if options.minutes is None else seconds >= 60 * options.minutes

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = options.recipe or make_recipe(folder)
        with running(recipe, folder, options.set) as service:
            load = Load(service, make_bodies(LINES, options.seed), options.seed)
            outcome = asyncio.run(load.run(options.concurrency, is_enough))
            is_well = report(outcome, pages_in_use(service.url))
    print("well" if is_well else "NOT WELL")
    return 0 if is_well else 1


if __name__ == "__main__":
    raise SystemExit(main())
