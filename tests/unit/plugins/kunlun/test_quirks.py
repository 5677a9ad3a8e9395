"""Every profile that makes the stack wrong is caught by name: at detection, at load, or by the conformance suite."""

import pytest
import torch

from anychip_sdk.conformance.cases import plan_cases
from anychip_sdk.conformance.manifest import load_claims
from anychip_sdk.conformance.run.attempt import Bench
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import (
    BackendIncompatible,
    DeviceAbsent,
    DeviceLost,
    FusionRefused,
    KernelMissing,
    MemoryInsufficient,
)
from support.engines import core_of, greedy, loaded, make_recipe, prepare_on, run
from support.tiny_models import make_tiny

KUNLUN = {"name": "kunlun", "emulate": True, "threads": 1}
POLICIES = {"policies": ["add_rms_norm", "mha", "ffn"], "on_missing": "error"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("kunlun") / "model", "qwen3")


def recipe(model, dtype="bfloat16", **sections):
    return make_recipe(model, **{"model": {"dtype": dtype}, "backend": KUNLUN, "fusion": POLICIES, **sections})


def suite(rig, pattern):
    """What the suite says of the cases that the pattern names."""
    claims = load_claims("anychip_kunlun")
    bench = Bench.open(lambda: rig.backend, claims, "smoke", config=DeviceConfig(emulate=True, threads=1))
    attempts = {one.id: bench.try_out(one) for one in plan_cases(claims, "smoke", only=[pattern])}
    assert attempts
    return {name for name, one in attempts.items() if one.outcome == "failed"}


def absence(rig):
    with pytest.raises(DeviceAbsent) as refused:
        rig.backend.find_device(None)
    return str(refused.value)


def test_an_import_hook_that_failed_silently_is_found_before_anything_runs(make_rig):
    text = absence(make_rig(hook_applied=False))
    assert "torch: torch_xmlir is installed, but torch has no kernels of it" in text


def test_visible_devices_that_contradict_each_other_are_told_with_both(make_rig):
    assert "XPU_VISIBLE_DEVICES=0, CUDA_VISIBLE_DEVICES=1: they must be equal" in absence(
        make_rig(visible_mismatch=True)
    )


def test_an_old_driver_is_refused_by_number(make_rig):
    with pytest.raises(BackendIncompatible, match=r"driver is 4\.0\.25"):
        make_rig(driver="4.0.25", runtime="4.0.25").open()


def test_wrong_float16_products_are_named_at_load_with_what_mends_them(make_rig, model):
    wanted, rig = recipe(model, "float16", fusion={"policies": []}), make_rig(linear_columns_right=100)
    with pytest.raises(KernelMissing) as refused, loaded(wanted, rig.backend):
        pass
    assert "known defect of wide float16 products" in refused.value.message
    assert "compute_dtype: bfloat16" in refused.value.hint


def test_another_dtype_for_the_op_mends_wrong_float16_products(make_rig, model):
    overrides = [{"op": op, "dtype": "float16", "compute_dtype": "bfloat16"} for op in ("linear", "lm_head")]
    tokens = []
    for settings, ops in (({"linear_columns_right": 100}, {"overrides": overrides}), ({}, {"overrides": overrides})):
        wanted = recipe(model, "float16", fusion={"policies": []}, ops=ops)
        with core_of(wanted, make_rig(**settings).backend) as core:
            tokens.append(run(core, greedy([[1, 2, 3, 4]], 8)))
    assert tokens[0] == tokens[1]


def test_whole_blocks_are_mended_where_the_pool_has_their_dtype(make_rig, model):
    blocks = ("linear", "lm_head", "mha", "ffn")
    overrides = [{"op": op, "dtype": "float16", "compute_dtype": "bfloat16"} for op in blocks]
    memory = {"kv_tokens": 2048, "kv_dtype": "bfloat16"}
    wanted = recipe(model, "float16", ops={"overrides": overrides}, memory=memory)
    with core_of(wanted, make_rig(linear_columns_right=100).backend) as core:
        assert {one.policy for one in core.plan.fusions if one.applied} == {"add_rms_norm", "mha", "ffn"}
        assert run(core, greedy([[1, 2, 3]], 4))


def test_slices_alone_mend_products_that_are_wrong_beyond_them(make_rig):
    rig = make_rig(linear_columns_right=65536)
    device = rig.open()
    weight = torch.randn(70000, 16, generator=torch.Generator().manual_seed(0)).half()
    rig.backend.prepare_weight("lm_head.weight", weight, "lm_head", device)


def test_a_turned_gate_is_refused_when_fusions_are_verified(make_rig, model):
    with pytest.raises(FusionRefused, match="fusion ffn"), loaded(recipe(model), make_rig(turned_swiglu=True).backend):
        pass


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"turned_swiglu": True}, "AC-OP-001[silu-mul-bfloat16-small]"),
        ({"plain_alpha": True}, "AC-OP-001[paged-attention-bfloat16-plain]"),
        ({"blocking_streams": True}, "AC-STREAM-001"),
    ],
)
def test_the_suite_names_the_requirement_that_a_quirk_breaks(make_rig, settings, pattern):
    assert suite(make_rig(memory_bytes=1 << 30), pattern) == set()
    assert suite(make_rig(memory_bytes=1 << 30, **settings), pattern) == {pattern}


def test_a_missing_op_shows_as_a_fallback_with_its_reason_or_is_forbidden(make_rig, model):
    backend = make_rig(missing_ops=("swiglu",)).backend
    named = {"policies": ["mha", "ffn"], "on_missing": "warn"}
    plan = prepare_on(recipe(model, fusion=named), backend).plan
    assert any("needs kunlun_ops with swiglu" in warning for warning in plan.warnings)
    assert {one.op for one in plan.ops if one.is_fallback} == {"silu", "mul"}
    with pytest.raises(FusionRefused, match="ffn"):
        prepare_on(recipe(model, fusion={**named, "on_missing": "error"}), backend)
    with pytest.raises(KernelMissing, match=r"op silu .*which ops\.fallback forbids"):
        prepare_on(recipe(model, fusion=named, ops={"fallback": "forbid"}), backend)


def test_a_fragmented_card_says_what_is_reserved_in_pieces(make_rig):
    device = make_rig(is_fragmenting=True, memory_bytes=64 * MIB).open()
    pieces = [device.alloc(8 * MIB) for _ in range(6)]
    del pieces[::2]
    with pytest.raises(MemoryInsufficient, match="reserved in pieces that are too small"):
        device.alloc(16 * MIB)  # 24 are free


def test_a_kernel_that_dies_is_named_by_the_step_that_waits_for_it(make_rig, model):
    rig = make_rig()
    with core_of(recipe(model), rig.backend) as core:
        run(core, greedy([[1, 2, 3]], 2))
        rig.machine.inject(714, op="swiglu")
        with pytest.raises(DeviceLost, match="the last op queued was"):
            run(core, greedy([[1, 2, 3, 4]], 2))


def test_an_unreadable_tool_is_no_reason_to_see_no_card(make_rig):
    assert make_rig(smi="missing").backend.probe()
