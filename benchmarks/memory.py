"""Peak memory of a service under load, beyond the weights and the pool that its plan counts. Knows HTTP; no engine.

    python benchmarks/memory.py [--recipe recipes/quickstart.yaml] [--shape] [--quantization none int8 int4]

Starts a service for each way to hold the weights, sends it 16 prompts of 256 random token ids at once, each for 64
tokens, and prints in GiB: what the plan counts, the most that the worker's and the server's process ever held in memory
(the kernel's own figure, with libraries and mapped files), and what that is beyond weights and pool. The aim is at
most 0.8. With --shape the model is of Qwen3-0.6B's shape with random weights.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from service_process import model_of, running
from startup import QUICKSTART, make_shape

from anychip.plan.make import prepare
from anychip.recipe import load

GIB = 2**30
REQUESTS, PROMPT_TOKENS, TOKENS = 16, 256, 64


def planned(recipe: str, sets: tuple[str, ...]) -> tuple[int, int]:
    """Bytes of weights and of the pool."""
    prepared = prepare(load(recipe, sets=sets).recipe)
    prepared.checkpoint.close()
    return prepared.plan.memory.weights, prepared.plan.memory.kv_pool


def complete(url: str, model: str, number: int) -> int:
    """Ask for one completion; returns how many tokens came."""
    ids = random.Random(number)
    body = {
        "model": model,
        "prompt": [ids.randrange(1000, 40000) for _ in range(PROMPT_TOKENS)],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
    }
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return int(json.load(reply)["usage"]["completion_tokens"])


def peak_bytes(process: psutil.Process) -> int:
    """The most that the process ever had in memory."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


def measure(recipe: str, quantization: str) -> None:
    sets = (f"model.quantization={quantization}",)
    weights, pool = planned(recipe, sets)
    with tempfile.TemporaryDirectory() as folder, running(recipe, Path(folder), sets) as service:
        loaded = peak_bytes(service.worker)
        model = model_of(service.url)
        with ThreadPoolExecutor(REQUESTS) as clients:
            counts = list(clients.map(lambda number: complete(service.url, model, number), range(REQUESTS)))
        assert counts == [TOKENS] * REQUESTS
        worker, server = peak_bytes(service.worker), peak_bytes(service.server)
    columns = (weights, pool, loaded, worker, worker - weights - pool, server)
    print(f"{quantization:<12}" + "".join(f"{one / GIB:>10.2f}" for one in columns), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=str(QUICKSTART))
    parser.add_argument("--shape", action="store_true", help="a model of Qwen3-0.6B's shape instead")
    parser.add_argument("--quantization", nargs="+", default=["none", "int8", "int4"])
    options = parser.parse_args()
    titles = ("weights", "pool", "loaded", "worker", "beyond", "server")
    with tempfile.TemporaryDirectory() as folder:
        recipe = make_shape(Path(folder)) if options.shape else options.recipe
        print(f"{'GiB':<12}" + "".join(f"{one:>10}" for one in titles))
        for quantization in options.quantization:
            measure(recipe, quantization)


if __name__ == "__main__":
    main()
