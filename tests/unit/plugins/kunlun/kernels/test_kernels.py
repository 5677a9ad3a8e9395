"""Every kernel against the float64 reference, on both generations of the vendor's wheels."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from anychip_kunlun.kernels import attention, linear, preparing, quantized
from anychip_kunlun.kernels.attention import plan_attention
from anychip_kunlun.kernels.linear import Linear
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.program import Preparation
from anychip_sdk.registry import OpKey, dtype_name
from anychip_sdk.step import Slots
from anychip_sdk.testing import check_kernel, random_case
from support.engines import core_of, greedy, make_recipe, run
from support.tiny_models import make_tiny

FUSED = ("rms_norm", "add_rms_norm", "silu_mul", "ffn", "rope", "qk_norm_rope", "kv_write", "paged_attention", "mha")
SIZES = {"head_dim": 32, "page_size": 16, "hidden": 64}
FACTS = {**SIZES, "window": None, "group": 0}


def chosen(rig, op, dtype, **facts):
    key = OpKey(op, CATALOGUE[op].version, dtype)
    return rig.backend.ops.resolve(key, {**FACTS, "kv_dtype": dtype_name(dtype), **facts})


def head_major(op, args):
    """The case with its caches in the pool's order of memory."""
    names = [arg.name for arg in CATALOGUE[op].args]
    return [
        value.transpose(1, 2).contiguous().transpose(1, 2) if name in ("k_cache", "v_cache") else value
        for name, value in zip(names, args, strict=True)
    ]


def checked(rig, op, dtype, **case):
    kernel = chosen(rig, op, dtype).kernel
    assert kernel.provider == "kunlun"
    args = head_major(op, random_case(op, dtype, seed=3, **{**SIZES, **case}))
    found = check_kernel(CATALOGUE[op], kernel, args, dtype, facts=FACTS)
    assert found.passed, found


@pytest.mark.parametrize("generation", ["torch251", "torch290"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("op", FUSED)
def test_fused_ops_are_within_bounds_on_both_generations(make_rig, op, dtype, generation):
    rig = make_rig(generation=generation)
    rig.open()
    for strided in (False, True):
        checked(rig, op, dtype, strided=strided)


#: only ever seen apart where the fused op is missing, which then has to show
FALLBACKS = {"mul", "silu"}
#: whose kernels the vendor's stack has in other forms than the catalogue's; the reference runs them
REFERENCES = {
    *("cap_logits", "causal_conv_silu", "gate_rows", "gated_delta_rule", "latent_attention", "latent_write"),
    *("layer_norm", "moe_experts", "moe_experts_int4", "moe_experts_int8", "rms_norm_offset", "router_topk", "scale"),
    "sigmoid_mul",
}


@pytest.mark.parametrize("op", sorted(set(CATALOGUE) - set(FUSED) - FALLBACKS - REFERENCES))
def test_the_others_are_within_bounds(rig, op):
    rig.open()
    dtype = torch.float32 if op in ("argmax", "sample", "apply_penalties", "apply_logit_bias") else torch.bfloat16
    checked(rig, op, dtype)


@pytest.mark.parametrize("op", sorted(REFERENCES))
def test_what_the_backend_has_no_kernel_for_is_the_references(rig, op):
    rig.open()
    assert chosen(rig, op, torch.bfloat16).kernel.provider == "reference"


def test_the_older_generation_decodes_with_another_op(make_rig):
    for generation, op in (("torch251", "paged_attention"), ("torch290", "speculative_attention")):
        rig = make_rig(generation=generation)
        rig.open()
        checked(rig, "paged_attention", torch.bfloat16, prefill_rows=0)
        assert rig.machine.launches[op] == 1


def test_qk_norm_takes_the_op_that_splits_norms_and_turns(rig):
    rig.open()
    checked(rig, "mha", torch.bfloat16)
    assert rig.machine.launches["split_norm_rope_neox"] == 1
    assert "rotary_embedding" not in rig.machine.launches


def test_more_decodes_than_the_op_takes_are_split(rig):
    rig.open()
    args = head_major("paged_attention", random_case("paged_attention", torch.bfloat16, 1, **SIZES, prefill_rows=0))
    plan = plan_attention(args[3], 0, rows_max=2)
    assert [(one.start, one.stop) for one in plan.decodes] == [(0, 2), (2, 3)]
    attend = attention.Attention(rig.plugin._vendor)

    def in_parts(q, k_cache, v_cache, step, scale, window, group, *_):
        return attend(q, k_cache, v_cache, plan_attention(step, group, rows_max=2), scale, window, group)

    found = check_kernel(CATALOGUE["paged_attention"], in_parts, args, torch.bfloat16)
    assert found.passed
    assert rig.machine.launches["speculative_attention"] == 2


def test_what_a_step_is_planned_as_is_made_once_for_all_layers(rig, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        preparing, "plan_attention", lambda step, group: made.append(group) or plan_attention(step, group)
    )
    recipe = make_recipe(
        make_tiny(tmp_path / "model", "qwen3"),
        model={"dtype": "bfloat16"},
        backend={"name": "kunlun", "emulate": True, "threads": 1},
        memory={"kv_tokens": 2048},
    )
    with core_of(recipe, rig.backend) as core:
        made.clear()
        run(core, greedy([[1, 2, 3]], 4))
        assert len(made) == core.scheduler.stats().steps == 4


@pytest.mark.parametrize(
    ("policies", "kinds"),
    [([], ("_attention", "_slots", "_turns")), (["mha"], ("_block",))],
    ids=["unfused", "whole blocks"],
)
def test_each_preparation_is_made_once_per_step_for_all_layers(rig, tmp_path, monkeypatch, policies, kinds):
    ran = Counter()
    bind = Preparation.bind

    def counted(self, values, limits):
        prepare = bind(self, values, limits)

        def run_once(step):
            ran[self.prepare.make.__name__] += 1
            return prepare(step)

        return run_once

    monkeypatch.setattr(Preparation, "bind", counted)
    recipe = make_recipe(
        make_tiny(tmp_path / "model", "qwen3"),
        model={"dtype": "bfloat16"},
        backend={"name": "kunlun", "emulate": True, "threads": 1},
        fusion={"policies": policies},
        memory={"kv_tokens": 2048},
    )
    with core_of(recipe, rig.backend) as core:
        ran.clear()
        run(core, greedy([[1, 2, 3]], 4))
        assert ran == dict.fromkeys(kinds, core.scheduler.stats().steps)


@pytest.mark.parametrize("op", ["kv_write", "paged_attention", "mha"])
def test_pages_are_those_of_the_calls_group(rig, op):
    rig.open()
    names = [arg.name for arg in CATALOGUE[op].args]
    args = head_major(op, random_case(op, torch.bfloat16, seed=4, **SIZES))
    step = args[names.index("step")]
    other = Slots(torch.arange(step.rows))
    args[names.index("step")] = replace(step, groups=(other, *step.groups))
    args[names.index("group")] = 1
    kernel = chosen(rig, op, torch.bfloat16, group=1).kernel
    found = check_kernel(CATALOGUE[op], kernel, args, torch.bfloat16, facts={**FACTS, "group": 1})
    assert kernel.provider == "kunlun"
    assert found.passed, found


@pytest.mark.parametrize(
    ("op", "facts", "reason"),
    [
        ("paged_attention", {"page_size": 1}, "page_size is 1, it needs one of 16, 64, 128"),
        ("paged_attention", {"head_dim": 48}, "head_dim is 48, it needs one of 32, 64, 80"),
        ("mha", {"window": 128}, "window is 128, it needs one of None"),
        ("kv_write", {"kv_dtype": "float16"}, "kv_dtype is float16, it needs one of bfloat16"),
    ],
)
def test_what_the_ops_do_not_take_falls_back_with_the_reason(rig, op, facts, reason):
    found = chosen(rig, op, torch.bfloat16, **facts)
    assert found.is_fallback
    assert any(one.reason.startswith(reason) for one in found.rejected)


@pytest.mark.parametrize(("op", "missing"), [("silu_mul", "swiglu"), ("ffn", "swiglu"), ("rms_norm", "rmsnorm")])
def test_a_missing_op_falls_back_and_is_named(make_rig, op, missing):
    found = chosen(make_rig(missing_ops=(missing,)), op, torch.bfloat16)
    assert found.is_fallback
    assert found.rejected[0].reason == f"{missing} is None, it needs kunlun_ops with {missing}"


def test_on_a_chip_without_fused_ops_what_torch_has_not_falls_back(make_rig):
    rig = make_rig(chip="R300")
    assert chosen(rig, "add", torch.bfloat16).provider == "kunlun"
    found = chosen(rig, "rms_norm", torch.bfloat16)
    assert found.is_fallback
    assert found.rejected[0].reason == "chip is None, it needs a chip that kunlun_ops runs on (P800)"


def test_wide_products_are_cut_into_slices(rig, monkeypatch):
    monkeypatch.setattr(linear, "WEIGHT_ROWS_MAX", 8)
    kernel = Linear(rig.plugin._vendor)
    for op in ("linear", "lm_head"):
        args = random_case(op, torch.float16, seed=2, out=27, vocab=27)
        assert check_kernel(CATALOGUE[op], getattr(kernel, op), args, torch.float16).passed


@pytest.mark.parametrize("op", quantized.QUANTIZED)
def test_quantized_weights_are_widened_slice_by_slice(op, monkeypatch):
    monkeypatch.setattr(quantized, "WIDENED_ROWS", 8)
    args = random_case(op, torch.bfloat16, seed=2, out=27, vocab=27, hidden=64)
    assert check_kernel(CATALOGUE[op], quantized.QUANTIZED[op], args, torch.bfloat16).passed


INT8 = CATALOGUE["linear_int8"]


def prepared(_name, tensor):
    return quantized.prepare(tensor).value


def int8_rows(rig, x, weight, scale, bias=None):
    """The vendor's product with weights as the loader hands them over."""
    parts = (one if one is None else prepared("", one) for one in (weight, scale, bias))
    return quantized.Int8Rows(rig.plugin._vendor).linear_int8(x, *parts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=dtype_name)
@pytest.mark.parametrize("hidden", [1, 70, 1000])
def test_int8_of_whole_rows_takes_the_vendors_ops(rig, dtype, hidden):
    rig.open()
    kernel = chosen(rig, "linear_int8", dtype, block=0, group_size=0, out_features=56).kernel
    assert (kernel.name, kernel.prepares_weight) == ("quant2d+matmul", True)
    for bias in (False, True):
        args = random_case("linear_int8", dtype, seed=6, hidden=hidden, bias=bias, block=0)
        found = check_kernel(INT8, kernel.function, args, dtype, prepare=prepared)
        assert found.passed, found
    assert rig.machine.launches["quant2d"] == rig.machine.launches["matmul"] == 2


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"block": 32}, "block is 32, it needs one of 0"),
        ({"group_size": 32}, "group_size is 32, it needs one of 0"),
        ({"out_features": 65537}, "out_features is 65537, it needs at most 65536"),
    ],
)
def test_what_the_int8_product_does_not_take_is_widened(rig, facts, reason):
    usual = {"block": 0, "group_size": 0, "out_features": 56}
    found = chosen(rig, "linear_int8", torch.bfloat16, **{**usual, **facts})
    assert (found.provider, found.kernel.name) == ("kunlun", "torch")
    assert found.rejected[0].reason == reason


def test_int8_rows_that_are_no_numbers_or_next_to_none_are_as_the_op_says(rig):
    rig.open()
    x, weight, scale, bias, _ = random_case("linear_int8", torch.float32, seed=1, block=0)
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    x[2] = 1e-35
    out = int8_rows(rig, x, weight, scale, bias)
    assert out[:2].isnan().all()
    assert torch.equal(out[2], bias)
    torch.testing.assert_close(out[3:], INT8(x[3:], weight, scale, bias, 0))


def test_int8_takes_views_batches_and_no_rows_at_all(rig):
    rig.open()
    x, weight, scale, _, _ = random_case("linear_int8", torch.float32, seed=2, tokens=12, block=0)
    wide = torch.cat((x, x), dim=1)[:, :48].view(3, 4, 48)
    torch.testing.assert_close(int8_rows(rig, wide, weight, scale), INT8(wide, weight, scale, None, 0))
    assert int8_rows(rig, x[:0], weight, scale).shape == (0, 56)


def test_halves_of_one_tensor_are_not_copied(rig):
    rig.open()
    both = torch.randn(4, 64)
    gate, up = both.chunk(2, dim=1)
    before = rig.machine.launches.get("swiglu", 0)
    out = chosen(rig, "silu_mul", torch.float32).kernel.function(gate, up)
    torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up)
    assert rig.machine.launches["swiglu"] == before + 1
