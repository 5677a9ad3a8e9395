"""Time a plan's kernels from inside: each call, or a compiled graph as a whole. Knows resolutions; knows no op."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from anychip.forecast.costs import CHOICE
from anychip.graph.codegen import Compiled
from anychip.plan.plan import Plan
from anychip_sdk.device import Device
from anychip_sdk.registry import Kernel, Resolution
from anychip_sdk.step import Step

KernelId = tuple[str, str]  #: op, provider/kernel


class KernelClock:
    """Puts kernels that add up their time in the place of a plan's.

    Attributes:
        taken_s: by each kernel since it was last cleared.
        plan: with those kernels.
    """

    def __init__(self, plan: Plan, device: Device) -> None:
        self.taken_s: dict[KernelId, float] = {}
        self._device = device
        self._timed: dict[int, Kernel] = {}
        calls = tuple(
            call if call.bound is None else replace(call, bound=self._resolution(call.bound))
            for call in plan.program.calls
        )
        choice = {CHOICE: self._resolution(plan.engine_ops[CHOICE])}
        program = replace(plan.program, calls=calls)
        self.plan = replace(plan, program=program, engine_ops={**plan.engine_ops, **choice})

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


class WholeClock:
    """A compiled forward that tells its time, and whether it left a step to the generated Python.

    Attributes:
        taken_s: by the last step.
        was_left: the last step was not the compiled forward's own.
    """

    def __init__(self, generated: Compiled, device: Device) -> None:
        self.taken_s = 0.0
        self.was_left = False
        self._generated = generated
        self._device = device
        self._compiled = generated

    def watch(self, compiled: Compiled) -> None:
        self._compiled = compiled

    def generated(self, step: Step) -> tuple[torch.Tensor, ...]:
        """What the compiler is given as the generated Python."""
        self.was_left = True
        return self._generated(step)

    def __call__(self, step: Step) -> torch.Tensor:
        self.was_left = False
        began_s = time.perf_counter()
        [result] = self._compiled(step)
        self._device.synchronize()
        self.taken_s = time.perf_counter() - began_s
        return result


__all__ = ["KernelClock", "KernelId", "WholeClock"]
