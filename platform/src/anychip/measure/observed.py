"""From steps that were watched to the speeds of their device. Knows numbers; runs nothing.

Each step was watched while memory was so fast; steps that were watched while it was about equally fast make one set of
speeds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

import numpy as np

from anychip.measure.fit import Sample, fit
from anychip_sdk.speeds import COMPILED, KernelSpeed, Speeds, is_near

ENOUGH = 0.75  #: of the steps in which a kernel ran


@dataclass(frozen=True)
class Overhead:
    """What a step took beside its kernels, between so many calls of them from Python."""

    requests: int
    calls: int
    seconds: float
    step_s: float  #: the whole step


@dataclass(frozen=True)
class StepSample:
    """A step that was watched.

    Attributes:
        memory_bytes_per_s: how fast memory was meanwhile.
        kernels: what each had to do, and how long it took.
        beside: None for prompts.
        tokens: of the step.
        compiled_ops: of the graph, where it ran compiled, too.
    """

    memory_bytes_per_s: float
    kernels: Mapping[str, Sample]
    beside: Overhead | None
    tokens: int
    compiled_ops: frozenset[str] = frozenset()


class Observed:
    """All steps that were watched, each as often as it was."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, list[StepSample]] = {}

    def add(self, step: Hashable, seen: StepSample) -> None:
        self._seen.setdefault(step, []).append(seen)

    def lacks(self, step: Hashable) -> bool:
        """Whether a step was not seen while memory was as fast as it mostly was."""
        return step not in self._seen or not _near(self._seen[step], _mostly(self._all()))

    def speeds(self) -> list[Speeds]:
        """While memory was as fast as it mostly was, and as at other times of which enough was seen; the slowest first.

        A step that was never seen while memory was as fast as mostly counts as it was seen.
        """
        left = self._all()
        memory_bytes_per_s = _mostly(left)
        nearest = [_nearest(seens, memory_bytes_per_s) for seens in self._seen.values()]
        found = [_speeds(memory_bytes_per_s, nearest)]
        while left := [one for one in left if not is_near(one.memory_bytes_per_s, memory_bytes_per_s)]:
            memory_bytes_per_s = _mostly(left)
            others = [near[0] for seens in self._seen.values() if (near := _near(seens, memory_bytes_per_s))]
            if self._are_enough(others):
                found.append(_speeds(memory_bytes_per_s, others))
        return sorted(found, key=lambda speeds: speeds.memory_bytes_per_s or 0.0)

    def _all(self) -> list[StepSample]:
        return [one for seens in self._seen.values() for one in seens]

    def _are_enough(self, some: Sequence[StepSample]) -> bool:
        all_counts, counts = _counts([seens[0] for seens in self._seen.values()]), _counts(some)
        return all(counts.get(kernel, 0) >= ENOUGH * count for kernel, count in all_counts.items())


def _counts(seens: Sequence[StepSample]) -> dict[str, int]:
    """In how many steps each kernel ran."""
    names = [name for one in seens for name in one.kernels]
    return {name: names.count(name) for name in set(names)}


def _near(seens: Sequence[StepSample], memory_bytes_per_s: float) -> list[StepSample]:
    return [one for one in seens if is_near(one.memory_bytes_per_s, memory_bytes_per_s)]


def _nearest(seens: Sequence[StepSample], memory_bytes_per_s: float) -> StepSample:
    return min(seens, key=lambda one: abs(one.memory_bytes_per_s - memory_bytes_per_s))


def _mostly(seens: Sequence[StepSample]) -> float:
    """How fast memory was most of the time, about."""
    fullest = max((_near(seens, one.memory_bytes_per_s) for one in seens), key=len)
    return float(np.median([one.memory_bytes_per_s for one in fullest]))


def _speeds(memory_bytes_per_s: float, seens: Sequence[StepSample]) -> Speeds:
    samples: dict[str, list[Sample]] = {}
    for seen in seens:
        for kernel, sample in seen.kernels.items():
            samples.setdefault(kernel, []).append(sample)
    step_s, request_s, call_s = _engine([seen.beside for seen in seens if seen.beside is not None])
    compiled = [seen for seen in seens if seen.compiled_ops]
    return Speeds(
        f"measured on this machine, {datetime.now(timezone.utc).isoformat(timespec='minutes')}",
        {kernel: _with_call(kernel, fit(found), call_s) for kernel, found in samples.items()},
        step_s=step_s,
        request_s=request_s,
        compiled_ops=tuple(sorted({op for seen in compiled for op in seen.compiled_ops})),
        compiled_tokens=max((seen.tokens for seen in compiled), default=0),
        memory_bytes_per_s=memory_bytes_per_s,
    )


def _engine(beside: Sequence[Overhead]) -> tuple[float, float, float]:
    """Seconds for each step, for each request in it, and for each call: least squares, relative to whole steps."""
    if not beside:
        return 0.0, 0.0, 0.0
    amounts = np.array([(1.0, one.requests, one.calls, one.seconds) for one in beside])
    relative = amounts / np.array([one.step_s for one in beside])[:, None]
    step_s, request_s, call_s = np.linalg.lstsq(relative[:, :-1], relative[:, -1], rcond=None)[0]
    return max(0.0, float(step_s)), max(0.0, float(request_s)), float(call_s)


def _with_call(kernel: str, speed: KernelSpeed, call_s: float) -> KernelSpeed:
    """What lies between two calls is counted as theirs, less what timing them took; a compiled graph has none."""
    return speed if kernel.startswith(COMPILED) else replace(speed, call_s=max(0.0, speed.call_s + call_s))


__all__ = ["Observed", "Overhead", "StepSample"]
