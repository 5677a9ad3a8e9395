"""The references against formulas written in another way, in float64. Knows no kernel."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from anychip_sdk import CATALOGUE
from anychip_sdk.ops import (
    add_rms_norm,
    cap_logits,
    causal_conv_silu,
    ffn,
    gated_delta_rule,
    gelu,
    gelu_mul,
    kv_write,
    layer_norm,
    lm_head,
    mha,
    paged_attention,
    qk_norm_rope,
    rms_norm,
    rms_norm_offset,
    rope,
    scale,
    sigmoid_mul,
    silu_mul,
)
from anychip_sdk.step import Paged
from anychip_sdk.testing import check_kernel, chunk_step, random_case, random_step


def at(position):
    """A step of one token at that position."""
    return chunk_step([0] * (position + 1), position, 1, [0], position + 1)


F64 = torch.float64


def test_every_op_has_a_random_case():
    for name in CATALOGUE:
        args = random_case(name, torch.float32, seed=0)
        assert len(args) == len(CATALOGUE[name].args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, F64])
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_each_reference_is_within_its_own_error_model(name, dtype):
    op = CATALOGUE[name]
    for seed in range(3):
        args = random_case(name, dtype, seed, strided=seed == 1, bias=seed != 2)
        found = check_kernel(op, op.reference, args, dtype)
        assert found.passed, found


def test_rope_is_a_multiplication_by_a_complex_unit():
    q, k, step, table = random_case("rope", F64, seed=1, head_dim=16)
    turned_q, turned_k = rope(q, k, step, table)
    cos, sin = table[step.positions].double().chunk(2, dim=-1)
    unit = torch.complex(cos, sin).unsqueeze(1)
    for before, after in ((q, turned_q), (k, turned_k)):
        expected = torch.complex(*before.chunk(2, dim=-1)) * unit
        torch.testing.assert_close(after, torch.cat((expected.real, expected.imag), dim=-1))


def test_rope_leaves_what_lies_behind_rotary_dim():
    q, k, step, table = random_case("rope", F64, seed=1, head_dim=16, rotary_dim=6)
    turned_q, turned_k = rope(q, k, step, table)
    assert torch.equal(turned_q[..., 6:], q[..., 6:])
    assert torch.equal(turned_k[..., 6:], k[..., 6:])
    assert not torch.equal(turned_q[..., :6], q[..., :6])


def test_rope_depends_on_the_distance_only():
    q, k, _, table = random_case("rope", F64, seed=3, tokens=1, heads=1, kv_heads=1)
    products = []
    for start in (0, 5, 100):
        turned_q, _ = rope(q, q, at(start + 7), table)
        _, turned_k = rope(k, k, at(start), table)
        products.append((turned_q * turned_k).sum())
    # the table is float32
    torch.testing.assert_close(products[1], products[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(products[2], products[0], rtol=1e-5, atol=1e-5)


def test_rms_norm_gives_unit_mean_square():
    x = torch.randn(3, 64, dtype=F64, generator=torch.Generator().manual_seed(0)) * 7
    normalised = rms_norm(x, torch.ones(64, dtype=F64), 0.0)
    torch.testing.assert_close(normalised.square().mean(-1), torch.ones(3, dtype=F64))
    torch.testing.assert_close(normalised, x / x.square().mean(-1, keepdim=True).sqrt())


def test_composed_ops_equal_their_parts():
    x, residual, weight, eps = random_case("add_rms_norm", F64, seed=2)
    out, total = add_rms_norm(x, residual, weight, eps)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, rms_norm(total, weight, eps))
    q, k, q_weight, k_weight, eps, step, table = random_case("qk_norm_rope", F64, seed=2)
    expected = rope(rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps), step, table)
    for one, other in zip(qk_norm_rope(q, k, q_weight, k_weight, eps, step, table), expected, strict=True):
        torch.testing.assert_close(one, other)


def test_activations_equal_their_formulas():
    gate, up = random_case("silu_mul", F64, seed=4)
    torch.testing.assert_close(silu_mul(gate, up), gate / (1 + (-gate).exp()) * up)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    torch.testing.assert_close(gelu(gate), 0.5 * gate * (1 + inner.tanh()))
    torch.testing.assert_close(gelu_mul(gate, up), gelu(gate) * up)
    torch.testing.assert_close(sigmoid_mul(gate, up), up / (1 + (-gate).exp()))


def test_ffn_is_down_of_silu_gate_times_up():
    x, gate_up, gate_up_bias, down, down_bias = random_case("ffn", F64, seed=5)
    gate, up = (x @ gate_up.T + gate_up_bias).chunk(2, dim=-1)
    torch.testing.assert_close(
        ffn(x, gate_up, gate_up_bias, down, down_bias), (gate * gate.sigmoid() * up) @ down.T + down_bias
    )


def test_lm_head_returns_float32_for_bfloat16():
    x, weight = random_case("lm_head", torch.bfloat16, seed=0)
    logits = lm_head(x, weight)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, x.float() @ weight.float().T)


@pytest.mark.parametrize("window", [None, 1, 6, 100])
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_attention_equals_dense_attention_with_a_mask(page_size, window):
    generator = torch.Generator().manual_seed(page_size)
    pairs = [(1, 9), (1, 1), (12, 12), (5, 20), (1, 17)]
    heads, kv_heads, dim = 6, 2, 8
    step = random_step(generator, page_size, 128, [context for _, context in pairs[:2]], pairs[2:])
    entry = step.paged(0)
    k_cache, v_cache = (
        torch.full((128, page_size, kv_heads, dim), torch.nan, dtype=F64).contiguous() for _ in range(2)
    )
    queries, expected = [], []
    for row, (length, context) in enumerate(pairs):
        q, k, v = (torch.randn(n, h, dim, dtype=F64, generator=generator) for n, h in
                   ((length, heads), (context, kv_heads), (context, kv_heads)))  # fmt: skip
        at = torch.arange(context)
        slots = entry.page_table[row].long()[at // page_size] * page_size + at % page_size
        kv_write(k, v, k_cache, v_cache, replace(step, groups=(Paged(entry.page_table, slots),)), 0)
        query_at = at[context - length :].unsqueeze(1)
        seen = (at <= query_at) & ((at > query_at - window) if window else True)
        k, v = (x.repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1) for x in (k, v))
        dense = scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=seen, scale=0.3)
        queries.append(q)
        expected.append(dense.transpose(0, 1))
    out = paged_attention(torch.cat(queries), k_cache, v_cache, step, 0.3, window)
    torch.testing.assert_close(out, torch.cat(expected))


def test_a_soft_cap_bounds_scores_and_a_sink_takes_weight_from_them():
    q, k_cache, v_cache, step, scale, window, group, cap, sinks = random_case(
        "paged_attention", F64, seed=2, soft_cap=3, sinks=1, decode_rows=1, prefill_rows=0, context_min=9, kv_heads=4
    )
    context = step.context_lens_host[0]
    places = step.paged(0).page_table[0].long()
    keys, values = (cache[places].flatten(0, 1)[:context] for cache in (k_cache, v_cache))
    for head in range(4):
        scores = cap * ((keys[:, head] @ q[0, head]) * scale / cap).tanh()
        weights = scores.exp() / (scores.exp().sum() + sinks[head].exp())
        out = paged_attention(q, k_cache, v_cache, step, scale, window, group, cap, sinks)
        torch.testing.assert_close(out[0, head], weights @ values[:, head])


def test_the_norms_equal_their_formulas():
    x, weight, eps = random_case("rms_norm_offset", F64, seed=3)
    torch.testing.assert_close(rms_norm_offset(x, weight, eps), rms_norm(x, weight + 1, eps))
    x, weight, bias, eps = random_case("layer_norm", F64, seed=3)
    centred = x - x.mean(-1, keepdim=True)
    expected = weight * centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() + bias
    torch.testing.assert_close(layer_norm(x, weight, bias, eps), expected)


def test_factors_and_caps_equal_their_formulas():
    x, factor = random_case("scale", F64, seed=1)
    torch.testing.assert_close(scale(x, factor), x * factor)
    logits, cap = random_case("cap_logits", F64, seed=1)
    assert cap_logits(logits, cap).abs().max() < cap
    grown, shrunk = (logits / cap).exp(), (-logits / cap).exp()
    torch.testing.assert_close(cap_logits(logits, cap), cap * (grown - shrunk) / (grown + shrunk))


def test_mha_does_not_depend_on_where_the_pages_lie():
    args = random_case("mha", F64, seed=6, page_size=4)
    first = mha(*(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args))[0]
    names = [arg.name for arg in mha.args]
    keys, values, step = (names.index(name) for name in ("k_cache", "v_cache", "step"))
    entry = args[step].paged(0)
    order = torch.randperm(len(args[keys]), generator=torch.Generator().manual_seed(1))
    inverse = order.argsort()
    moved = list(args)
    moved[keys], moved[values] = args[keys][order], args[values][order]
    there = Paged(inverse[entry.page_table.long()].int(), inverse[entry.slots // 4] * 4 + entry.slots % 4)
    moved[step] = replace(args[step], groups=(there,))
    torch.testing.assert_close(mha(*moved)[0], first)


@pytest.mark.parametrize("op", [kv_write, paged_attention, mha])
def test_references_take_caches_whose_memory_is_head_major(op):
    args = random_case(op.name, F64, seed=7, page_size=4)
    names = [arg.name for arg in op.args]
    moved = [
        value.transpose(1, 2).contiguous().transpose(1, 2) if name in ("k_cache", "v_cache") else value
        for name, value in zip(names, args, strict=True)
    ]
    expected = op(*args)  # in place, but on tensors of its own
    torch.testing.assert_close(op(*moved), expected, equal_nan=True)


def test_a_causal_convolution_equals_torch_s_with_zeros_in_front():
    sizes = {"decode_rows": 0, "prefill_rows": 1, "context_min": 20}
    args = list(random_case("causal_conv_silu", F64, seed=0, **sizes))
    x, weight, bias, history, step, group = args
    history = torch.zeros_like(history)
    out, kept = causal_conv_silu(x, weight, bias, history, step, group)
    padded = torch.nn.functional.pad(x.T.unsqueeze(0), (history.shape[1], 0))
    summed = torch.nn.functional.conv1d(padded, weight.unsqueeze(1), bias, groups=x.shape[1])[0].T
    torch.testing.assert_close(out, summed * summed.sigmoid())
    assert torch.equal(kept[step.slotted(0).slots[0]], torch.cat((torch.zeros_like(history[0]), x))[-3:])


def test_the_gated_delta_rule_equals_a_product_of_transition_matrices():
    """S' = sum over tokens of (decay (1 - share k k')) ... applied to share v k', each from its token on."""
    sizes = {"decode_rows": 0, "prefill_rows": 1, "context_min": 9, "context_max": 9, "key_heads": 2, "value_heads": 4}
    args = list(random_case("gated_delta_rule", F64, seed=1, **sizes))
    q, k, v, a, b, a_log, dt_bias, sums, step, eps, group = args
    out, _ = gated_delta_rule(*args[:7], torch.zeros_like(sums), step, eps, group)
    tokens, dim = len(q), q.shape[-1]
    for head in range(4):
        keys, queries = (
            x[:, head // 2] / (x[:, head // 2].square().sum(-1, keepdim=True) + eps).sqrt() for x in (k, q)
        )
        decay = (-a_log[head].double().exp() * (1 + (a[:, head] + dt_bias[head]).exp()).log()).exp()
        share = 1 / (1 + (-b[:, head]).exp())
        for last in range(tokens):
            total = torch.zeros(v.shape[-1], dtype=F64)
            for first in range(last + 1):
                moved = keys[first]
                for t in range(first + 1, last + 1):
                    moved = decay[t] * (moved - share[t] * keys[t] * (keys[t] @ moved))
                total += share[first] * v[first, head] * (moved @ queries[last]) / dim**0.5
            torch.testing.assert_close(out[last, head], total, rtol=1e-6, atol=1e-9)
