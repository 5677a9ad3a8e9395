"""Measure how fast a device runs its kernels, inside the engine's own steps. Knows what to run; fits nothing itself.

Two random models, one narrow and one wide, decode and read prompts with every fusion and with none, their weights in
the device's first dtype and in 8 and 4 bits. Each kernel's time in a step is one sample; the engine's own is the rest.
Steps are run again that were not seen while memory was as fast as it mostly was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from anychip.engine.loader import step_limits
from anychip.forecast.costs import StepShape, costs_of, sum_of, work_in
from anychip.graph.codegen import generate
from anychip.graph.quantize import WHOLE_BLOCKS
from anychip.measure.fit import Sample
from anychip.measure.kernel_clock import KernelClock, KernelId
from anychip.measure.memory_speed import MemoryClock
from anychip.measure.observed import Observed, Overhead, StepSample
from anychip.measure.random_model import load_random, plan_random
from anychip.measure.rehearsal import Rehearsal, tokens_held
from anychip.plan.plan import Plan
from anychip_sdk.backend import Backend
from anychip_sdk.device import Device, DeviceConfig, DeviceInfo
from anychip_sdk.fusion import POLICIES as BUILT_IN
from anychip_sdk.registry import dtype_name
from anychip_sdk.speeds import Speeds

CHUNK = 256  #: prompt tokens in a step
DECODES = 2, 5  #: steps that only warm up, steps that count
PROMPTS = 1, 2
PASSES = 3
#: of both models; they differ in how much a kernel has to do between two calls, and one has norms of queries and keys
_SHAPE = {
    "vocab_size": 16384,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": False,
}
_NARROW = {
    **_SHAPE,
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
_WIDE = {
    **_SHAPE,
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "num_hidden_layers": 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
FEW = (
    StepShape(1, 64),
    StepShape(4, 64),
    StepShape(16, 64),
    StepShape(32, 256),
    StepShape(64, 64),
    StepShape(0, prompt=CHUNK),
)
LONG = (StepShape(1, 2048), StepShape(8, 2048), StepShape(2, 8192), StepShape(0, prompt=CHUNK, start=2048))
QUANTIZATIONS = ("none", "int8", "int4")
POLICIES: Mapping[str, str | list[str]] = {
    "all fusions": "auto",
    "small fusions": [policy for policy in BUILT_IN if policy not in WHOLE_BLOCKS],
    "no fusions": [],
}
SHAPES = {"narrow": _NARROW, "wide": _WIDE}
STEPS = {"narrow": (*FEW, *LONG[:3]), "wide": (*FEW, *LONG)}

WHOLE: KernelId = ("", "compiled")  #: a compiled graph among kernels

Report = Callable[[str], None]  #: what is measured now


class _Planned(NamedTuple):
    """A random model, in words, and the steps that it runs."""

    what: str
    plan: Plan
    steps: Sequence[StepShape]


def measure(backend: Backend, device: DeviceInfo, threads: int | None, report: Report) -> list[Speeds]:
    """The speeds of a device's kernels, as fast as memory was; takes some ten seconds and half a GiB."""
    observed = Observed()
    opened = backend.open(device, DeviceConfig(emulate=backend.emulated, threads=threads))
    memory = MemoryClock(opened)
    try:
        for _ in range(PASSES):
            for what, plan, steps in _runs(backend, device, threads):
                lacking = [step for step in steps if observed.lacks((what, step))]
                if lacking:
                    report(what)
                    run = _Run(plan, backend, opened)
                    for step in lacking:
                        observed.add((what, step), run.watch(step, memory))
                    run.close()
    finally:
        memory.close()
        opened.close()
    return observed.speeds()


def _runs(backend: Backend, device: DeviceInfo, threads: int | None) -> Iterator[_Planned]:
    """What is run; nothing whose kernels have all been run."""
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
                yield _Planned(f"{shape}, {_held(plan)}, {fused}", plan, STEPS[shape])


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
class _Watched:
    """What the steps took that counted, and what kernels took in each of them."""

    real: StepShape
    steps_s: list[float] = field(default_factory=list)
    kernels_s: list[dict[KernelId, float]] = field(default_factory=list)

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)

    def of(self, kernel: KernelId) -> float:
        return statistics.median(taken_s[kernel] for taken_s in self.kernels_s)

    @property
    def of_all_s(self) -> float:
        return sum(map(self.of, self.kernels_s[0]))


class _Run:
    """One random model on the device: each kernel timed, none, and as a whole where the backend compiles it."""

    def __init__(self, plan: Plan, backend: Backend, device: Device) -> None:
        self._costs = costs_of(plan)
        model = load_random(plan, backend, device)
        self._pool, self._whole = model.generated.pool, model.whole
        self._clock = KernelClock(plan, device)
        timed = generate(self._clock.plan.program, model.values, step_limits(plan, device)).logits
        self._timed = Rehearsal(replace(model.generated, plan=self._clock.plan, forward=timed))
        self._untimed = Rehearsal(model.generated)
        if model.whole is not None:
            self._compiled = Rehearsal(replace(model.generated, plan=self._clock.plan, forward=model.whole))

    def watch(self, step: StepShape, memory: MemoryClock) -> StepSample:
        """Some steps like that."""
        steady = memory.steadily(
            lambda: (self._watched(self._timed, step), self._watched(self._untimed, step), self._as_a_whole(step))
        )
        timed, untimed, whole = steady.result
        kernels, ops = self._samples(timed), frozenset[str]()
        calls, beside_s, step_s = self._costs.together.calls, untimed.step_s - timed.of_all_s, untimed.step_s
        if whole is not None:  # and so never runs from Python
            kernels[self._costs.compiled_name] = Sample(self._costs.whole(whole.real), whole.of(WHOLE))
            calls, beside_s, step_s = 0, whole.step_s - whole.of_all_s, whole.step_s
            ops = frozenset(self._costs.graph_ops)
        beside = Overhead(step.samples, calls, beside_s, step_s) if step.decodes else None
        return StepSample(steady.memory_bytes_per_s, kernels, beside, step.tokens, ops)

    def close(self) -> None:
        self._pool.close()

    def _watched(self, rehearsal: Rehearsal, step: StepShape) -> _Watched:
        watched = _Watched(step)
        for watched.real, step_s in self._counted(rehearsal, step):
            watched.steps_s.append(step_s)
            watched.kernels_s.append(dict(self._clock.taken_s))
        return watched

    def _as_a_whole(self, step: StepShape) -> _Watched | None:
        """None where the backend compiles nothing, or leaves such steps to the generated Python."""
        if self._whole is None:
            return None
        watched = _Watched(step)
        for watched.real, step_s in self._counted(self._compiled, step):
            watched.steps_s.append(step_s)
            watched.kernels_s.append({**self._clock.taken_s, WHOLE: self._whole.taken_s})
        return None if self._whole.was_left else watched

    def _counted(self, rehearsal: Rehearsal, step: StepShape) -> Iterator[tuple[StepShape, float]]:
        warm_up, repeats = DECODES if step.decodes else PROMPTS
        self._clock.taken_s.clear()
        for number, (real, step_s) in enumerate(rehearsal.time(step, warm_up + repeats)):
            if number >= warm_up:
                yield real, step_s
            self._clock.taken_s.clear()

    def _samples(self, watched: _Watched) -> dict[str, Sample]:
        """Of each kernel whose time can be told: not that of one that holds weights in several dtypes."""
        found: dict[str, Sample] = {}
        for op, kernel in watched.kernels_s[0]:
            uses = {use: work for use, work in self._costs.uses.items() if use.kernel.startswith(f"{op} {kernel} ")}
            names = {use.kernel for use in uses}
            if len(names) == 1:
                work = sum_of(work_in(use, work, watched.real) for use, work in uses.items())
                found[names.pop()] = Sample(work, watched.of((op, kernel)))
        return found


__all__ = ["measure"]
