"""Measure how fast a device runs its kernels, inside the engine's own steps. Knows what to run; fits nothing itself.

Two random models, one narrow and one wide, decode and read prompts with every fusion and with none, their weights in
the device's first dtype and in 8 and 4 bits. Each kernel's time in a step is one sample; the engine's own is the rest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import numpy as np

from anychip.engine.fit import Sample, fit
from anychip.engine.random_model import load_random, plan_random
from anychip.engine.rehearsal import Rehearsal
from anychip.graph.fusions import ORDER
from anychip.graph.ir import RESOLUTION, resolution
from anychip.graph.quantize import WHOLE_BLOCKS
from anychip.plan.costs import CHOICE, Step, costs_of, sum_of, work_in
from anychip.plan.plan import Plan
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.registry import Kernel, Resolution, dtype_name
from anychip_sdk.speeds import Speeds

CHUNK = 256  #: prompt tokens in a step
DECODES = 2, 5  #: steps that only warm up, steps that count
PROMPTS = 1, 2
#: parallel work of both models; they differ in how much a kernel has to do between two calls
_SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 16384,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
_NARROW = {
    **_SHAPE,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
_WIDE = {
    **_SHAPE,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 10,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 128,
}
FEW = (Step(1, 64), Step(4, 64), Step(16, 64), Step(32, 64), Step(0, prompt=CHUNK))
LONG = (Step(1, 2048), Step(8, 2048), Step(0, prompt=CHUNK, start=2048))
QUANTIZATIONS = ("none", "int8", "int4")
POLICIES: Mapping[str, str | list[str]] = {
    "all fusions": "auto",
    "small fusions": [policy for policy in ORDER if policy not in WHOLE_BLOCKS],
    "no fusions": [],
}
SHAPES = {"narrow": _NARROW, "wide": _WIDE}
STEPS = {"narrow": FEW, "wide": (*FEW, *LONG)}

Report = Callable[[str], None]  #: what is measured now


def measure(backend: Backend, device: DeviceInfo, threads: int | None, report: Report) -> Speeds:
    """The speeds of a device's kernels; takes some ten seconds and half a GiB."""
    samples = _Samples()
    opened = backend.open(device, DeviceConfig(emulate=backend.emulated, threads=threads))
    try:
        for what, plan, steps in _runs(backend, device, threads):
            report(what)
            _Run(plan, backend, opened).time(steps, samples)
    finally:
        opened.close()
    step_s, request_s = samples.engine()
    kernels = {kernel: fit(found) for kernel, found in samples.kernels.items()}
    today = datetime.now(timezone.utc).isoformat(timespec="minutes")
    return Speeds(f"measured on this machine, {today}", kernels, None, step_s, request_s)


def _runs(backend: Backend, device: DeviceInfo, threads: int | None) -> Iterator[tuple[str, Plan, Sequence[Step]]]:
    """What is run, in words, planned, and at which steps; nothing whose kernels have all been run."""
    known: set[str] = set()
    for quantization in QUANTIZATIONS:
        for fused, policies in POLICIES.items():
            recipe = _recipe(backend, device, threads, quantization, policies)
            plans = {shape: plan_random(raw, recipe, backend, device) for shape, raw in SHAPES.items()}
            kernels = {use.kernel for plan in plans.values() for use in costs_of(plan).uses}
            if kernels <= known or (quantization != "none" and _on_references(plans.values())):
                continue
            known |= kernels
            for shape, plan in plans.items():
                yield f"{shape}, {_held(plan)}, {fused}", plan, STEPS[shape]


def _on_references(plans: Iterable[Plan]) -> bool:
    """Products of integers on the references would take minutes, and nobody serves so."""
    return any(row.op.startswith("linear_") and row.is_fallback for plan in plans for row in plan.ops)


def _held(plan: Plan) -> str:
    quantization = plan.model.quantization.value
    return dtype_name(plan.model.dtype.value) if quantization == "none" else quantization


def _recipe(
    backend: Backend, device: DeviceInfo, threads: int | None, quantization: str, policies: str | list[str]
) -> Mapping[str, object]:
    tokens = max(step.decodes * (step.context + 2 * CHUNK) for step in (*FEW, *LONG))
    return {
        "model": {
            "source": "./random",
            "dtype": dtype_name(device.capabilities.dtypes[0]),
            "quantization": quantization,
        },
        "backend": {"name": backend.name, "threads": threads},
        "memory": {"kv_tokens": tokens},
        "scheduler": {"chunked_prefill_size": CHUNK, "max_running_requests": 64, "prefix_cache": False},
        "fusion": {"policies": policies, "on_missing": "ignore"},
    }


@dataclass
class _Samples:
    kernels: dict[str, list[Sample]] = field(default_factory=dict)
    engines: list[tuple[int, float]] = field(default_factory=list)  #: samples of a step, seconds beside kernels

    def engine(self) -> tuple[float, float]:
        """Seconds for a step, and for each request in it."""
        counts, seconds = (np.array(values, dtype=np.float64) for values in zip(*self.engines, strict=True))
        slope, offset = np.polyfit(counts, seconds, 1)
        return max(0.0, float(offset)), max(0.0, float(slope))


class _Clock:
    """Kernels of a plan, replaced by such that add up their time."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self.taken_s: dict[tuple[str, str], float] = {}
        self._device = device
        self._timed: dict[int, Kernel] = {}
        for node, _ in plan.graph.op_nodes():
            node.meta[RESOLUTION] = self._resolution(resolution(node))
        choice = {CHOICE: self._resolution(plan.engine_ops[CHOICE])}
        self.plan = replace(plan, engine_ops={**plan.engine_ops, **choice})

    def _resolution(self, bound: Resolution) -> Resolution:
        kernel = bound.kernel
        if id(kernel) not in self._timed:
            self._timed[id(kernel)] = replace(kernel, function=self._function(kernel))
        return replace(bound, kernel=self._timed[id(kernel)])

    def _function(self, kernel: Kernel) -> Callable[..., Any]:
        taken_s, now_s, synchronize, run = self.taken_s, time.perf_counter, self._device.synchronize, kernel.function
        key = (kernel.op, f"{kernel.provider}/{kernel.name}")

        def timed(*args: Any) -> Any:
            began_s = now_s()
            result = run(*args)
            synchronize()
            taken_s[key] = taken_s.get(key, 0.0) + now_s() - began_s
            return result

        return timed


class _Run:
    """One random model on the device."""

    def __init__(self, plan: Plan, backend: Backend, device: Device) -> None:
        self._uses = costs_of(plan).uses
        self._clock = _Clock(plan, device)
        self._model = load_random(self._clock.plan, backend, device)
        self._rehearsal = Rehearsal(self._model)

    def time(self, steps: Sequence[Step], samples: _Samples) -> None:
        for step in steps:
            self._step(step, samples)
        self._model.pool.close()

    def _step(self, step: Step, samples: _Samples) -> None:
        warm_up, repeats = DECODES if step.decodes else PROMPTS
        taken: list[float] = []
        kernels: dict[tuple[str, str], list[float]] = {}
        self._clock.taken_s.clear()
        real = step
        for number, (real, taken_s) in enumerate(self._rehearsal.time(step, warm_up + repeats)):  # noqa: B007
            if number >= warm_up:
                taken.append(taken_s - sum(self._clock.taken_s.values()))
                for key, of_kernel_s in self._clock.taken_s.items():
                    kernels.setdefault(key, []).append(of_kernel_s)
            self._clock.taken_s.clear()
        samples.engines.append((step.samples, statistics.median(taken)))
        for (op, kernel), seconds in kernels.items():
            uses = {use: asked for use, asked in self._uses.items() if use.kernel.startswith(f"{op} {kernel} ")}
            names = {use.kernel for use in uses}
            if len(names) == 1:  # else its time can't be told apart
                works = [work_in(use, asked, real) for use, asked in uses.items()]
                samples.kernels.setdefault(names.pop(), []).append(Sample(sum_of(works), statistics.median(seconds)))


__all__ = ["measure"]
