"""What a checkpoint takes in each precision agrees with the plans that recipes get."""

from __future__ import annotations

import pytest

from anychip.plan.estimate import Precision, estimate, precisions
from anychip.plan.resolve import resolve
from anychip.recipe import load_sets
from support.plans import GIB, facts, plan_of, stub_backend, tiny_config

CONFIG = tiny_config("qwen3")


def said(*sets):
    return load_sets(["version=1", "name=a", "model.source=/m", *sets], env={}).recipe


def test_a_device_offers_its_dtypes_and_every_quantization():
    device = stub_backend().probe()[0]
    names = [one.name for one in precisions(device, ["BF16"])]
    assert names == ["bfloat16", "float32", "float16", "int8", "int4", "int4-128"]
    assert "auto" in [one.name for one in precisions(device, ["F32", "Q4_1"])]


@pytest.mark.parametrize(
    "precision", [Precision("float32", "none"), Precision("auto", "int8")], ids=lambda one: one.name
)
def test_its_bytes_are_those_of_the_plan(precision):
    backend = stub_backend(capacity=GIB)
    need = estimate(said(), facts(CONFIG), backend, backend.probe()[0], precision)
    sets = (f"model.dtype={precision.dtype}", f"model.quantization={precision.quantization}")
    memory = plan_of(said(*sets), CONFIG, backend).memory
    assert need.needed is not None
    assert (need.needed.weights, need.needed.kv_bytes_per_token) == (memory.weights, memory.kv_bytes_per_token)
    assert need.bytes_of_states(10) == 10 * memory.kv_bytes_per_token
    assert need.largest_context == CONFIG.longest_context


def test_the_largest_context_fits_and_a_page_more_does_not():
    backend = stub_backend(capacity=3 * 2**20)
    device = backend.probe()[0]
    sets = ("memory.static_fraction=0.3", "scheduler.max_running_requests=1", "scheduler.chunked_prefill_size=16")
    need = estimate(said(*sets), facts(CONFIG), backend, device, Precision("float32", "none"))
    assert 0 < need.largest_context < CONFIG.longest_context
    assert need.largest_context % 16 == 0
    plan = resolve(said("model.dtype=float32", *sets), facts(CONFIG), backend, device, "")
    assert plan.scheduler.kv_tokens == need.largest_context


def test_what_is_used_by_others_now_does_not_count():
    empty, used = stub_backend(capacity=GIB), stub_backend(capacity=GIB, free=0)
    precision = Precision("float32", "none")
    needs = [estimate(said(), facts(CONFIG), one, one.probe()[0], precision) for one in (empty, used)]
    assert needs[0] == needs[1]


def test_a_precision_without_room_says_why():
    backend = stub_backend(capacity=2**19)
    need = estimate(said(), facts(CONFIG), backend, backend.probe()[0], Precision("float32", "none"))
    assert need.largest_context == 0
    assert "not enough memory" in need.problem
    assert need.needed is not None


def test_a_precision_that_the_shapes_do_not_allow_says_why():
    backend = stub_backend()
    need = estimate(said(), facts(CONFIG), backend, backend.probe()[0], Precision("auto", "int4-128"))
    assert need.needed is None
    assert "can't be quantized" in need.problem
