"""Time everything of a decode step but the kernels, part by part. Knows the engine's parts; computes no result.

    python benchmarks/overhead.py [--recipe recipes/quickstart.yaml] [--requests 1 16] [--tokens 64]

For greedy requests, drawn ones and such with penalties it prints microseconds per decode step, least and median of all
steps: what the worker does (scheduling, building tensors, calling kernels, choosing tokens, committing, sending) and
what the server's process does with the step's tokens (receiving, making text, making events). `dispatch` is the
generated forward with kernels that do nothing; `choose` includes the kernels that choose. The aim is 300 us at 1 and
1,000 us at 16 greedy requests. The least is what the work costs; on a shared machine the median has the neighbours'
share in it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import zmq

from anychip.engine import messages
from anychip.engine.core import EngineCore, build_core
from anychip.engine.outputs import ChoiceAssembler
from anychip.engine.request import GenerateRequest, SamplingParams, TokenEvent
from anychip.graph import codegen
from anychip.recipe import load
from anychip.server.openai.replies import TextChoice, TextReply
from anychip.server.streaming import frame
from anychip.text.tokenizer import Tokenizer
from anychip.weights.checkpoint import open_checkpoint
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Preparation
from anychip_sdk.registry import Resolution
from anychip_sdk.step import StepLimits

ROOT = Path(__file__).parents[1]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 0},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}
ENGINE = {"schedule": "schedule", "build": "inputs", "choose": "sample", "commit": "commit"}

Laps = dict[str, list[float]]


def timed(laps: Laps, part: str, work: Callable[[], Any]) -> Any:
    started_s = time.perf_counter()
    result = work()
    laps.setdefault(part, []).append(time.perf_counter() - started_s)
    return result


class Nothing:
    """What a kernel that does nothing returns; every view of it is itself."""

    def __getattr__(self, _name: str) -> Callable[..., Nothing]:
        return lambda *_: self


def idle_forward(core: EngineCore) -> Callable[[], Any]:
    """The generated forward with kernels that do nothing: what calling them costs."""
    nothing = Nothing()

    def idle(bound: Resolution) -> Callable[..., Any]:
        results = len(CATALOGUE[bound.key.name].returns)
        result: Any = nothing if results == 1 else (nothing,) * results
        return lambda *_: result

    with (
        mock.patch.object(codegen, "bound_function", idle),
        mock.patch.object(Preparation, "bind", return_value=lambda step: nothing),
    ):
        limits = StepLimits(1, 1, 1, torch.device("cpu"))
        forward = codegen.generate(core.plan.program, defaultdict(lambda: nothing), limits).function
    return lambda: forward(nothing)


class ServerSide:
    """A socket to itself and what the server's process does behind it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context = zmq.Context()
        self._near, self._far = (self._context.socket(zmq.PAIR) for _ in range(2))
        self._near.bind("inproc://overhead")
        self._far.connect("inproc://overhead")
        self._choices: dict[str, ChoiceAssembler] = {}

    def __call__(self, laps: Laps, events: list[TokenEvent]) -> None:
        timed(laps, "send", lambda: self._near.send(messages.encode(messages.Events(events))))
        received = timed(laps, "receive", lambda: messages.decode_from_worker(self._far.recv()))
        deltas = timed(laps, "text", lambda: [self._choice(event).push(event) for event in received.events])
        timed(
            laps,
            "events",
            lambda: [frame(TextReply("cmpl-0", 0, "model", [TextChoice(0, one.text)])) for one in deltas],
        )

    def _choice(self, event: TokenEvent) -> ChoiceAssembler:
        if event.completion_tokens == 1:
            self._choices[event.request_id] = ChoiceAssembler(self._tokenizer.stream())
        return self._choices[event.request_id]

    def close(self) -> None:
        self._context.destroy()


def measure(core: EngineCore, server: ServerSide, kind: str, requests: int, tokens: int) -> Laps:
    """Steps in which all requests decode; the prompts differ, so that nothing is shared."""
    vocab = core.plan.model.config.vocab_size
    params = SamplingParams(**KINDS[kind], max_tokens=tokens, ignore_eos=True)
    for number in range(requests):
        prompt = [(97 * number + 13 * place) % vocab for place in range(64)]
        core.add(GenerateRequest(f"{kind}-{number}", prompt, params))
    laps: Laps = {}
    dispatch = idle_forward(core)
    while core.has_work:
        before, of_step = core.stats(), Laps()
        events = core.step()
        timed(of_step, "dispatch", dispatch)
        server(of_step, events)
        after = core.stats()
        for part, name in (*ENGINE.items(), ("forward", "forward")):
            of_step[part] = [after[f"{name}_seconds"] - before[f"{name}_seconds"]]
        if len(events) == requests and events[0].completion_tokens > 1:
            for part, seconds in of_step.items():
                laps.setdefault(part, []).extend(seconds)
    core.flush_cache()
    return laps


def show(title: str, columns: Sequence[Laps], parts: Sequence[str]) -> None:
    def cell(one: Sequence[float]) -> str:
        return f"{f'{1e6 * min(one):.1f} / {1e6 * statistics.median(one):.1f}':>20}"

    print(f"{title}:")
    for part in parts:
        print(f"  {part:<18}" + "".join(cell(laps[part]) for laps in columns))
    totals = [[sum(step) for step in zip(*(laps[part] for part in parts), strict=False)] for laps in columns]
    print(f"  {'together':<18}" + "".join(cell(total) for total in totals), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default=str(ROOT / "recipes" / "quickstart.yaml"))
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    core = build_core(load(options.recipe).recipe, lambda *_: None)
    with open_checkpoint(core.plan.model.path) as checkpoint:
        server = ServerSide(Tokenizer.from_checkpoint(checkpoint))
    try:
        print(f"{core.plan.model.served_name}, backend {core.plan.backend.name}, {torch.get_num_threads()} threads")
        for requests in options.requests:
            columns = [measure(core, server, kind, requests, options.tokens) for kind in KINDS]
            print(f"\n{requests} requests, us per step (least / median)  " + "".join(f"{kind:>20}" for kind in KINDS))
            show("kernels", columns, ["forward"])
            show("worker", columns, [*list(ENGINE)[:2], "dispatch", *list(ENGINE)[2:], "send"])
            show("server", columns, ["receive", "text", "events"])
    finally:
        server.close()
        core.close()


if __name__ == "__main__":
    main()
