"""Measure how fast a device runs its kernels, inside the engine's own steps. Knows what to run; fits nothing itself.

Two random models, one narrow and one wide, decode and read prompts with every fusion and with none, their weights in
the device's first dtype and in 8 and 4 bits. Each kernel's time in a step is one sample; the engine's own is the rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

import numpy as np

from anychip.engine.fit import Sample, fit
from anychip.engine.kernel_clock import KernelClock, KernelId, WholeClock
from anychip.engine.random_model import load_random, plan_random
from anychip.engine.rehearsal import Rehearsal, tokens_held
from anychip.graph.codegen import generate
from anychip.graph.fusions import ORDER
from anychip.graph.quantize import WHOLE_BLOCKS
from anychip.plan.costs import Costs, Step, costs_of, sum_of, work_in
from anychip.plan.plan import Plan
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.registry import dtype_name
from anychip_sdk.speeds import COMPILED, Speeds, Work

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
    "num_key_value_heads": 2,
    "head_dim": 64,
}
_WIDE = {
    **_SHAPE,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
FEW = (Step(1, 64), Step(4, 64), Step(16, 64), Step(32, 256), Step(64, 64), Step(0, prompt=CHUNK))
LONG = (Step(1, 2048), Step(8, 2048), Step(0, prompt=CHUNK, start=2048))
QUANTIZATIONS = ("none", "int8", "int4")
POLICIES: Mapping[str, str | list[str]] = {
    "all fusions": "auto",
    "small fusions": [policy for policy in ORDER if policy not in WHOLE_BLOCKS],
    "no fusions": [],
}
SHAPES = {"narrow": _NARROW, "wide": _WIDE}
STEPS = {"narrow": (*FEW, *LONG[:2]), "wide": (*FEW, *LONG)}

Report = Callable[[str], None]  #: what is measured now


def measure(backend: Backend, device: DeviceInfo, threads: int | None, report: Report) -> Speeds:
    """The speeds of a device's kernels; takes some ten seconds and half a GiB."""
    samples = _Samples()
    opened = backend.open(device, DeviceConfig(emulate=backend.emulated, threads=threads))
    try:
        for what, plan, steps in _runs(backend, device, threads):
            report(what)
            _Run(plan, backend, opened, samples).time(steps)
    finally:
        opened.close()
    return samples.speeds()


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
    steps = [step for of in STEPS.values() for step in of]
    tokens = max(tokens_held(step, sum(DECODES), CHUNK) for step in steps)
    running = max(step.decodes for step in steps)
    return {
        "model": {
            "source": "./random",
            "dtype": dtype_name(device.capabilities.dtypes[0]),
            "quantization": quantization,
        },
        "backend": {"name": backend.name, "threads": threads},
        "memory": {"kv_tokens": tokens},
        "scheduler": {"chunked_prefill_size": CHUNK, "max_running_requests": running, "prefix_cache": False},
        "fusion": {"policies": policies, "on_missing": "ignore"},
    }


@dataclass
class _Samples:
    kernels: dict[str, list[Sample]] = field(default_factory=dict)
    compiled_ops: set[str] = field(default_factory=set)
    compiled_tokens: int = 0
    #: of a step: 1, rows that are sampled, calls of kernels, seconds that no kernel took, seconds in all
    steps: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, kernel: str, work: Work, seconds: Sequence[float]) -> None:
        self.kernels.setdefault(kernel, []).append(Sample(work, statistics.median(seconds)))

    def speeds(self) -> Speeds:
        """What lies between two kernels is counted as theirs, less what timing them took."""
        steps = np.array(self.steps)
        relative = steps[:, :-1] / steps[:, -1:]
        engine = np.linalg.lstsq(relative[:, :-1], relative[:, -1], rcond=None)[0]
        step_s, request_s = (max(0.0, float(seconds)) for seconds in engine[:2])
        fitted = {kernel: fit(found) for kernel, found in self.kernels.items()}
        for kernel, speed in fitted.items():
            if not kernel.startswith(COMPILED):
                fitted[kernel] = replace(speed, call_s=max(0.0, speed.call_s + float(engine[2])))
        today = datetime.now(timezone.utc).isoformat(timespec="minutes")
        compiled = tuple(sorted(self.compiled_ops)), self.compiled_tokens
        return Speeds(f"measured on this machine, {today}", fitted, None, step_s, request_s, *compiled)


class _Run:
    """One random model on the device, each kernel timed; and as a whole, where the backend compiles it."""

    def __init__(self, plan: Plan, backend: Backend, device: Device, samples: _Samples) -> None:
        self._uses, self._samples = costs_of(plan).uses, samples
        model = load_random(plan, backend, device)
        self._pool, self._whole = model.generated.pool, model.whole
        if model.whole is not None:
            self._compiled = Rehearsal(replace(model.generated, forward=model.whole))
        self._clock = KernelClock(plan, device)
        timed = generate(self._clock.plan.graph, model.values).forward
        self._timed = Rehearsal(replace(model.generated, plan=self._clock.plan, forward=timed))
        self._generated = Rehearsal(model.generated)

    def time(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._time_kernels(step)
            if self._whole is not None:
                self._time_whole(step, self._whole)
        self._pool.close()

    def _time_kernels(self, step: Step) -> None:
        kernels: dict[KernelId, list[float]] = {}
        warm_up, repeats = DECODES if step.decodes else PROMPTS
        self._clock.taken_s.clear()
        real = step
        for number, (real, _) in enumerate(self._timed.time(step, warm_up + repeats)):  # noqa: B007
            if number >= warm_up:
                for key, of_kernel_s in self._clock.taken_s.items():
                    kernels.setdefault(key, []).append(of_kernel_s)
            self._clock.taken_s.clear()
        if step.decodes:
            whole_s = statistics.median(
                [taken_s for _, taken_s in self._generated.time(step, warm_up + repeats)][warm_up:]
            )
            calls = sum(asked.calls for asked in self._uses.values())
            beside_s = whole_s - sum(map(statistics.median, kernels.values()))
            self._samples.steps.append((1.0, step.samples, calls, beside_s, whole_s))
        for (op, kernel), seconds in kernels.items():
            uses = {use: asked for use, asked in self._uses.items() if use.kernel.startswith(f"{op} {kernel} ")}
            names = {use.kernel for use in uses}
            if len(names) == 1:  # else its time can't be told apart
                work = sum_of(work_in(use, asked, real) for use, asked in uses.items())
                self._samples.add(names.pop(), work, seconds)

    def _time_whole(self, step: Step, clock: WholeClock) -> None:
        warm_up, repeats = DECODES if step.decodes else PROMPTS
        seconds = []
        real = step
        for number, (real, _) in enumerate(self._compiled.time(step, warm_up + repeats)):  # noqa: B007
            if clock.was_left:
                return
            if number >= warm_up:
                seconds.append(clock.taken_s)
        costs = Costs(self._uses)
        self._samples.add(costs.compiled_name, costs.whole(real), seconds)
        self._samples.compiled_ops |= costs.graph_ops
        self._samples.compiled_tokens = max(self._samples.compiled_tokens, step.tokens)


__all__ = ["measure"]
