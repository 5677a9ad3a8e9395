"""Fusions whose kernels compute something else are refused at load, and what is left is right. Knows wrong kernels."""

from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs

from anychip.engine.verification import refused_fusions
from anychip_sdk import ops
from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import FusionRefused
from anychip_sdk.fusion import Fusion
from anychip_sdk.ops import CATALOGUE
from support.engines import NO_FUSION, loaded, logits_of, make_recipe, random_prompts
from support.plans import GIB, plan_of, references, stub_backend, tiny_config
from support.tiny_models import make_tiny

POLICIES = ["qkv_proj", "gate_up_proj", "add_rms_norm", "qk_norm_rope", "silu_mul"]


def reference(name):
    return CATALOGUE[name].reference


def add_rms_norm_without_eps(x, residual, weight, eps):
    return reference("add_rms_norm")(x, residual, weight, 0.0)


def add_rms_norm_of_the_first_alone(x, residual, weight, eps):
    total = x + residual
    return reference("rms_norm")(x, weight, eps), total


def add_rms_norm_returning_the_wrong_total(x, residual, weight, eps):
    return reference("add_rms_norm")(x, residual, weight, eps)[0], residual


def qk_norm_rope_without_eps(q, k, nq, nk, eps, step, table):
    return reference("qk_norm_rope")(q, k, nq, nk, 0.0, step, table)


def qk_norm_rope_one_position_late(q, k, nq, nk, eps, step, table):
    late = replace(step, positions=step.positions.clamp(min=1))
    return reference("qk_norm_rope")(q, k, nq, nk, eps, late, table)


def qk_norm_rope_with_the_norms_swapped(q, k, nq, nk, eps, step, table):
    return reference("qk_norm_rope")(q, k, nk, nq, eps, step, table)


def silu_mul_of_another_slope(gate, up):
    return gate * torch.sigmoid(1.001 * gate) * up


def silu_mul_swapped(gate, up):
    return reference("silu_mul")(up, gate)


def mha_with(**changed):
    """The reference, given other arguments by name."""
    names = [arg.name for arg in CATALOGUE["mha"].args]

    def kernel(*args):
        given = dict(zip(names, args, strict=False))
        return reference("mha")(**{**given, **{name: change(given[name]) for name, change in changed.items()}})

    kernel.__name__ = "mha_with_another_" + "_".join(changed)
    return kernel


mha_with_another_scale = mha_with(scale=lambda scale: scale * 1.001)
mha_without_norms = mha_with(q_norm=lambda _: None, k_norm=lambda _: None)


def mha_that_writes_no_values(*args):
    at = [arg.name for arg in CATALOGUE["mha"].args].index("v_cache")
    out, k_cache, _ = reference("mha")(*args[:at], args[at].clone(), *args[at + 1 :])
    return out * 0.999, k_cache, args[at]


def ffn_with_the_halves_swapped(x, gate_up, bias, down, down_bias):
    return reference("ffn")(x, torch.cat(gate_up.chunk(2)[::-1]), bias, down, down_bias)


def ffn_that_is_nan(x, *rest):
    return reference("ffn")(x, *rest) * float("nan")


WRONG = {
    "add_rms_norm": [
        add_rms_norm_without_eps,
        add_rms_norm_of_the_first_alone,
        add_rms_norm_returning_the_wrong_total,
    ],
    "qk_norm_rope": [
        qk_norm_rope_without_eps,
        qk_norm_rope_one_position_late,
        qk_norm_rope_with_the_norms_swapped,
    ],
    "silu_mul": [silu_mul_of_another_slope, silu_mul_swapped],
    "mha": [mha_with_another_scale, mha_without_norms, mha_that_writes_no_values],
    "ffn": [ffn_with_the_halves_swapped, ffn_that_is_nan],
}
CASES = [pytest.param(policy, kernel, id=kernel.__name__) for policy, kernels in WRONG.items() for kernel in kernels]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    # with an eps of 1e-6 a head of unit variance is the same to rounding with it and without
    return make_tiny(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3", rms_norm_eps=1e-3)


def backend_with(**wrong):
    return stub_backend(kernels={**references(), **wrong}, capacity=4 * GIB)


def asked(policy):
    """The policy among others that are right and do not swallow it."""
    return [*[one for one in POLICIES if one != policy], policy] if policy in POLICIES else [policy, "add_rms_norm"]


@pytest.mark.parametrize(("policy", "kernel"), CASES)
def test_a_wrong_kernel_is_an_error_where_the_recipe_says_so(tiny, policy, kernel):
    recipe = make_recipe(tiny, fusion={"policies": asked(policy), "on_missing": "error"})
    with (
        pytest.raises(FusionRefused, match=f"fusion {policy}: its outputs are off by") as refused,
        loaded(recipe, backend_with(**{policy: kernel})),
    ):
        pass
    assert not [one for one in asked(policy) if one != policy and f"fusion {one}:" in str(refused.value)]
    assert refused.value.exit_code == 4


@pytest.mark.parametrize(("policy", "kernel"), CASES)
def test_a_wrong_kernel_is_left_out_with_a_warning_otherwise(tiny, policy, kernel):
    ids = random_prompts(1, [24])[0]
    with loaded(make_recipe(tiny, fusion=NO_FUSION), backend_with()) as model:
        right = logits_of(model, ids)
    recipe = make_recipe(tiny, fusion={"policies": asked(policy), "on_missing": "warn"})
    with capture_logs() as logs, loaded(recipe, backend_with(**{policy: kernel})) as model:
        assert f"fusion {policy}: refused: its outputs differ from the unfused graph's" in model.plan.warnings
        (decision,) = [one for one in model.plan.fusions if one.policy == policy]
        reason = "its outputs differ from the unfused graph's"
        assert (decision.applied, decision.refused, decision.reason) == (0, True, reason)
        assert {one.policy for one in model.plan.fusions if one.applied} == set(asked(policy)) - {policy}
        found = logits_of(model, ids)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == ["fusions refused"]


def test_a_wrong_fusion_under_a_policy_of_the_backends_own_is_refused_alone(tiny):
    def gated(gate, up):
        return ops.mul(ops.silu(gate), up)

    def swapped(gate, up):
        return ops.silu_mul(up, gate)

    backend = stub_backend(capacity=4 * GIB, fusions=[Fusion("own_gate", "swapped", gated, swapped, ("silu_mul",))])
    recipe = make_recipe(tiny, fusion={"policies": ["own_gate", "qkv_proj", "add_rms_norm"]})
    with capture_logs(), loaded(recipe, backend) as model:
        assert "fusion own_gate: refused: its outputs differ from the unfused graph's" in model.plan.warnings
        assert [one.policy for one in model.plan.fusions if one.applied] == ["qkv_proj", "add_rms_norm"]


def test_without_verification_a_wrong_kernel_runs(tiny):
    """So that the tests above show what verification does, not what a wrong kernel can't do."""
    ids = random_prompts(1, [24])[0]
    with loaded(make_recipe(tiny, fusion=NO_FUSION), backend_with()) as model:
        right = logits_of(model, ids)
    recipe = make_recipe(tiny, fusion={"policies": ["silu_mul"], "verify": False})
    with loaded(recipe, backend_with(silu_mul=silu_mul_swapped)) as model:
        assert (logits_of(model, ids) - right).abs().max() > 0.1


def refused(backend, kind="qwen3", policies=None, **config):
    recipe = make_recipe(
        "/models/m",
        model={"dtype": config.pop("dtype", "float32")},
        fusion={"policies": policies or [*POLICIES, "mha", "ffn"], "on_missing": "ignore"},
    )
    plan = plan_of(recipe, tiny_config(kind, **config), backend)
    device = backend.open(plan.backend.device, DeviceConfig())
    return set(refused_fusions(plan, backend, device))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_right_kernels_pass_in_every_dtype(kind, dtype):
    assert refused(backend_with(), kind, dtype=dtype) == set()
    assert refused(backend_with(), kind, dtype=dtype, policies=POLICIES) == set()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_wrong_kernels_are_both_found_and_no_other(dtype):
    backend = backend_with(silu_mul=silu_mul_swapped, qk_norm_rope=qk_norm_rope_with_the_norms_swapped)
    assert refused(backend, dtype=dtype, policies=POLICIES) == {"silu_mul", "qk_norm_rope"}


def test_a_window_that_the_fused_kernel_ignores_is_found():
    windowed = {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0}
    assert refused(backend_with(), "qwen2", policies=["mha"], **windowed) == set()
    assert refused(backend_with(mha=mha_with(window=lambda _: None)), "qwen2", policies=["mha"], **windowed) == {"mha"}


def test_a_bias_that_the_fused_kernel_ignores_is_found():
    assert refused(backend_with(mha=mha_with(qkv_bias=lambda _: None)), "qwen2", policies=["mha"]) == {"mha"}
