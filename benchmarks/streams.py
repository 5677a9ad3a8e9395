"""What many streams cost the server's process, beside a worker that generates for real. Knows HTTP; knows no engine.

    python benchmarks/streams.py [--recipe recipes/quickstart.yaml] [--streams 16] [--seconds 10]

Streams chat completions from a running service and prints, over a time in which all of them run: tokens per second,
the server's process in percent of a core and in microseconds per token, and the worker's share. The aim is under 10 %
of a core at 16 streams. CPU times don't depend on what else the machine does; rates do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
import urllib.parse
from pathlib import Path

from service_process import Service, cpu_s, model_of, running

ROOT = Path(__file__).parents[1]


class Streams:
    """Clients that read events and count them; each asks again when its answer has ended."""

    def __init__(self, url: str, model: str) -> None:
        self._place = urllib.parse.urlsplit(url)
        self._model = model
        self.events = 0

    async def run(self, number: int) -> None:
        while True:
            reader, writer = await asyncio.open_connection(self._place.hostname, self._place.port)
            try:
                writer.write(self._request(number))
                while data := await reader.read(65536):
                    self.events += data.count(b"data: {")
            finally:
                writer.close()

    def _request(self, number: int) -> bytes:
        body = json.dumps(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": f"Tell me story number {number}."}],
                "temperature": 0,
                "max_tokens": 1500,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self._place.netloc}\r\nConnection: close\r\n"
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def measure(service: Service, count: int, seconds: float) -> None:
    streams = Streams(service.url, model_of(service.url))
    tasks = [asyncio.create_task(streams.run(number)) for number in range(count)]
    while streams.events < 8 * count:  # all prompts are read
        await asyncio.sleep(0.1)
    server_s, worker_s, events, started_s = cpu_s(service.server), cpu_s(service.worker), streams.events, time.time()
    await asyncio.sleep(seconds)
    events, wall_s = streams.events - events, time.time() - started_s
    server_s, worker_s = cpu_s(service.server) - server_s, cpu_s(service.worker) - worker_s
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"{'streams':>8}{'tokens/s':>10}{'server % of a core':>20}{'server us/token':>17}{'worker % of a core':>20}")
    percent = f"{100 * server_s / wall_s:.1f}", f"{1e6 * server_s / events:.0f}", f"{100 * worker_s / wall_s:.0f}"
    print(f"{count:>8}{events / wall_s:>10.1f}{percent[0]:>20}{percent[1]:>17}{percent[2]:>20}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=str(ROOT / "recipes" / "quickstart.yaml"))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(options.recipe, Path(folder)) as service:
        asyncio.run(measure(service, options.streams, options.seconds))


if __name__ == "__main__":
    main()
