"""The op track: nothing is found on healthy kernels, each fault is found by the requirement that it names."""

from dataclasses import replace

import pytest
import torch

from anychip_sdk.conformance.reference import ReferenceLoader
from anychip_sdk.conformance.requirements import REQUIREMENTS
from anychip_sdk.registry import REFERENCE, dtype_name
from support.op_kv_checks import OP_IDS, claimed_cases, claims_for, kills, violations
from support.reference_runs import load_cpu

#: runs 50 or more times per op, or with threads: one dtype is enough for a quick test
COSTLY = ("AC-OP-012", "AC-OP-013", "AC-OP-017", "AC-OP-018")
BATCH = "AC-OP-014"  # the reference's matrix products depend on the number of rows, so it doesn't claim this
FAULTS = kills("AC-OP")


@pytest.mark.parametrize("key", [key for key in OP_IDS if key != BATCH])
def test_the_healthy_chip_fails_nothing(key):
    dtypes = ("bfloat16",) if key in COSTLY or key == "AC-OP-002" else ("bfloat16", "float32")
    claims = claims_for(dtypes=dtypes if key != "AC-OP-022" else ())
    assert violations(key, None, claims) == []


@pytest.mark.parametrize(("fault", "key"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_fault_is_found_by_its_requirement_which_the_healthy_chip_meets(fault, key):
    claims = claims_for(fault, more={"thread_safe": True, "batch_invariant": True})
    if key != "AC-OP-022":
        assert violations(key, None, claims) == []
    found = violations(key, fault, claims)
    assert found
    assert all(text.startswith(f"{key}[") for text in found)


def test_every_requirement_that_must_hold_finds_a_fault():
    must = {key for key in OP_IDS if REQUIREMENTS[key].force == "MUST"}
    assert must - {key for _, key in FAULTS} == set()


def test_flushing_is_right_where_it_is_claimed():
    claims = replace(claims_for("products_are_flushed"), subnormals="flush")
    assert violations("AC-OP-007", "products_are_flushed", claims) == []


def test_a_narrow_accumulator_is_right_where_it_is_claimed():
    claims = claims_for("logits_are_summed_in_half", dtypes=("bfloat16",))
    assert violations("AC-OP-001", "logits_are_summed_in_half", claims) != []
    assert (
        violations("AC-OP-001", "logits_are_summed_in_half", replace(claims, accumulator={"lm_head": "bfloat16"})) == []
    )


def test_a_page_layout_of_its_own_is_no_matter_of_the_op_track():
    claims = claims_for("pages_of32_are_transposed", dtypes=("bfloat16",))
    claims = replace(claims, ops={name: ("bfloat16",) for name in ("kv_write", "paged_attention", "mha")})
    for key in ("AC-OP-001", "AC-OP-002", "AC-OP-011", "AC-OP-020"):
        assert violations(key, "pages_of32_are_transposed", claims) == []


def test_what_is_not_claimed_is_a_case_that_needs_the_claim():
    claims = replace(claims_for(dtypes=("bfloat16", "float32")), ops={"silu": ("float32",)})
    cases = list(REQUIREMENTS["AC-OP-001"].cases(claims, "smoke"))
    ids = {case.id: case.needs for case in cases}
    assert ids["silu-bfloat16"] == ("op:silu:bfloat16",)
    assert ids["linear-float32"] == ("op:linear:float32",)
    held = [case.id for case in claimed_cases("AC-OP-001", claims)]
    assert held == [f"silu-float32-{kind}" for kind in ("ones", "small", "tails", "blocks", "wide")]


def test_cases_have_different_names():
    claims = claims_for()
    for key in OP_IDS:
        names = [case.id for case in REQUIREMENTS[key].cases(claims, "std")]
        assert len(names) == len(set(names))


def cpu_claims(*dtypes):
    """What the CPU backend has kernels for, in some dtypes."""
    registry = load_cpu().ops
    kernels = [kernel for op in registry.catalogue for kernel in registry.kernels(op) if kernel.provider != REFERENCE]
    own = {(kernel.op, dtype_name(dtype)) for kernel in kernels for dtype in kernel.dtypes}
    ops = {op: tuple(name for name in dtypes if (op, name) in own) for op in registry.catalogue}
    return replace(claims_for(more={}), name="cpu", dtypes=dtypes, ops=ops, limits={})


@pytest.mark.parametrize(
    "key", ["AC-OP-001", "AC-OP-003", "AC-OP-006", "AC-OP-010", "AC-OP-011", "AC-OP-015", "AC-OP-020"]
)
def test_the_cpu_backend_fails_nothing(key):
    assert violations(key, load_cpu, cpu_claims("bfloat16")) == []


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key in OP_IDS if key not in (BATCH, "AC-OP-017")])
def test_the_cpu_backend_fails_nothing_in_any_dtype(key):
    assert violations(key, load_cpu, cpu_claims("bfloat16", "float32", "float16")) == []


def test_a_loaded_reference_chip_serves_every_op_itself():
    backend = ReferenceLoader()()
    assert {kernel.provider for op in backend.ops.catalogue for kernel in backend.ops.kernels(op)[:1]} == {"refchip"}
    assert torch.bfloat16 in backend.ops.kernels("linear")[0].dtypes
