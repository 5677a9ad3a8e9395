"""Speeds are those of steps that were watched while memory was as fast. Knows numbers."""

import pytest

from anychip.measure.fit import Sample
from anychip.measure.observed import Observed, Overhead, StepSample
from anychip_sdk.speeds import COMPILED, KernelSpeed, Work

SLOW, FAST = 20e9, 40e9
SPEEDS = {SLOW: KernelSpeed(1e-5, 4e10, 8e11), FAST: KernelSpeed(2e-5, 7e10, 9e11)}
WORKS = [Work(8, 2 * size, 2 * size * rows) for size in (3_000_000, 40_000_000) for rows in (1, 4, 16, 64, 256)]
ENGINE = [Overhead(rows, calls, 1e-4 + 5e-6 * rows + 1e-6 * calls, 1e-2) for rows in (1, 9) for calls in (0, 99)]


def seen(work, memory=SLOW, kernel="linear", beside=None, **others):
    return StepSample(memory, {kernel: Sample(work, SPEEDS[memory].seconds(work))}, beside, 1, **others)


def observed(works, memory=SLOW, of=None, **others):
    found = Observed() if of is None else of
    for work in works:
        found.add(work, seen(work, memory, **others))
    return found


def is_near(found, speed):
    return all(found.seconds(work) == pytest.approx(speed.seconds(work), rel=0.02) for work in WORKS)


def test_each_speed_of_memory_that_was_seen_enough_has_its_own_figures():
    both = observed(WORKS, FAST, of=observed(WORKS, SLOW))
    slow, fast = both.speeds()
    assert (slow.memory_bytes_per_s, fast.memory_bytes_per_s) == (SLOW, FAST)
    assert is_near(slow.kernels["linear"], SPEEDS[SLOW])
    assert is_near(fast.kernels["linear"], SPEEDS[FAST])


def test_what_was_seen_too_seldom_makes_no_figures():
    [only] = observed(WORKS[:7], FAST, of=observed(WORKS)).speeds()
    assert only.memory_bytes_per_s == SLOW
    assert is_near(only.kernels["linear"], SPEEDS[SLOW])


def test_steps_are_lacking_until_memory_was_as_fast_as_mostly():
    found = observed(WORKS[1:], SLOW, of=observed(WORKS[:1], FAST))
    assert [work for work in WORKS if found.lacks(work)] == WORKS[:1]
    found.add(WORKS[0], seen(WORKS[0], SLOW))
    assert not any(map(found.lacks, WORKS))
    assert found.lacks("another")


def test_the_engine_has_a_time_for_steps_for_requests_and_for_calls():
    found = Observed()
    for work, beside in zip(WORKS, ENGINE * 3, strict=False):
        found.add(work, seen(work, beside=beside))
    [only] = found.speeds()
    assert only.step_s == pytest.approx(1e-4)
    assert only.request_s == pytest.approx(5e-6)
    assert only.kernels["linear"].call_s == pytest.approx(SPEEDS[SLOW].call_s + 1e-6, rel=0.05)


def test_a_compiled_graph_is_told_with_its_ops_and_tokens():
    kernel = COMPILED + "bfloat16"
    found = observed(WORKS, kernel=kernel, compiled_ops=frozenset({"b", "a"}), beside=ENGINE[1])
    [only] = found.speeds()
    assert (only.compiled_ops, only.compiled_tokens) == (("a", "b"), 1)
    assert only.kernels[kernel].call_s == pytest.approx(SPEEDS[SLOW].call_s, rel=0.05)
