"""Known speeds are found again from the times that they make. Knows numbers."""

import random

import pytest

from anychip.measure.fit import Sample, fit
from anychip_sdk.speeds import KernelSpeed, Work

ROWS = (1, 4, 16, 64, 256)
SIZES = (3_000_000, 40_000_000)


def samples(speed, works, noise=0.0):
    numbers = random.Random(0)
    return [Sample(work, speed.seconds(work) * (1 + numbers.uniform(-noise, noise))) for work in works]


def products():
    return [Work(8, 2 * size, 2 * size * rows) for size in SIZES for rows in ROWS]


def test_a_product_is_reading_multiplying_and_calling():
    speed = KernelSpeed(1e-5, 4e10, 8e11, 0.4)
    found = fit(samples(speed, products()))
    assert found.exposed == pytest.approx(speed.exposed, abs=0.06)
    assert found.weight_bytes_per_s == pytest.approx(speed.weight_bytes_per_s, rel=0.05)
    assert found.flops_per_s == pytest.approx(speed.flops_per_s, rel=0.05)
    assert found.call_s == pytest.approx(speed.call_s, rel=0.2)


def test_noise_moves_the_figures_little():
    speed = KernelSpeed(1e-5, 4e10, 8e11, 0.0)
    found = fit(samples(speed, products(), noise=0.03))
    for work in products():
        assert found.seconds(work) == pytest.approx(speed.seconds(work), rel=0.1)


def test_attention_has_a_rate_for_decodes_and_one_for_prompts():
    speed = KernelSpeed(1e-5, kv_bytes_per_s=3e10, attention_flops_per_s=5e11)
    works = [Work(4, kv_bytes=size) for size in (10**5, 10**7, 10**8)]
    found = fit(samples(speed, [*works, Work(4, attention_flops=10**9), Work(4, attention_flops=10**11)]))
    assert found.kv_bytes_per_s == pytest.approx(speed.kv_bytes_per_s, rel=1e-6)
    assert found.attention_flops_per_s == pytest.approx(speed.attention_flops_per_s, rel=1e-6)
    assert found.call_s == pytest.approx(speed.call_s, rel=1e-6)


def test_decodes_pay_for_bytes_and_for_scores():
    speed = KernelSpeed(kv_bytes_per_s=3e10, scores_per_s=2e9)
    works = [Work(4, kv_bytes=256 * count, scores=heads * count) for count in (10**4, 10**6) for heads in (2, 4)]
    found = fit(samples(speed, works))
    assert found.kv_bytes_per_s == pytest.approx(speed.kv_bytes_per_s, rel=1e-6)
    assert found.scores_per_s == pytest.approx(speed.scores_per_s, rel=1e-6)


def test_no_rate_is_below_zero():
    times = [Sample(Work(1, moved_bytes=size), 1e-5) for size in (10, 1000, 100000)]
    times.append(Sample(Work(1, moved_bytes=10**6), 0.9e-5))  # more took less
    found = fit(times)
    assert found.call_s > 0
    assert found.moved_bytes_per_s is None
