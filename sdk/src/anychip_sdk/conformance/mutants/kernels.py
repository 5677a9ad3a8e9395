"""Kernels with wrong values: tails, operands, heads, pages, strides, special numbers. Knows no check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from anychip_sdk.conformance.mutants.base import mutant, with_argument
from anychip_sdk.conformance.reference.kernels import reference_kernel
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.step import Paged, Step

Tensor = torch.Tensor


def exact(op: str) -> Callable[..., Tensor]:
    """The reference chip's kernel, typed as those of most ops are: with one result."""
    return reference_kernel(op)


# sizes and operands; simple ops declare their mistakes themselves

for _op in CATALOGUE.values():
    for _broken in _op.mistakes:
        mutant("AC-OP-001", op=_op.name)(_broken)


@mutant("AC-OP-001", op="linear")
def linear_sums_in_half(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Products are summed in bfloat16, though nothing is claimed of that."""
    total = torch.zeros((*x.shape[:-1], weight.shape[0]), dtype=torch.bfloat16)
    for at in range(0, x.shape[-1], 16):
        total += (x[..., at : at + 16].float() @ weight[:, at : at + 16].float().T).bfloat16()
    return total.to(x.dtype) if bias is None else total.to(x.dtype) + bias


@mutant("AC-OP-001", op="add_rms_norm")
def add_rms_norm_returns_the_old_residual(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Any:
    """The second result is the residual before the sum."""
    return exact("add_rms_norm")(x, residual, weight, eps)[0], residual.clone()


@mutant("AC-OP-001", op="ffn")
def ffn_has_up_first(
    x: Tensor, gate_up: Tensor, gate_up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor:
    """The joined weight is read as up rows, then gate rows."""
    inner = gate_up.shape[0] // 2
    bias = None if gate_up_bias is None else gate_up_bias.roll(inner, 0)
    return exact("ffn")(x, gate_up.roll(inner, 0), bias, down, down_bias)


@mutant("AC-OP-001", op="mha")
def mha_ignores_the_output_bias(*args: Any) -> Any:
    """The output projection's bias is not added."""
    return exact("mha")(*with_argument("mha", args, out_bias=lambda _: None))


@mutant("AC-OP-010", op="moe_experts")
def experts_overwrite_their_input(x: Tensor, *rest: Any) -> Tensor:
    """The sum is written where the rows lie, which a shared expert may still have to read."""
    return x.copy_(exact("moe_experts")(x, *rest))


@mutant("AC-OP-001", op="embedding")
def embedding_misses_the_last_row(step: Step, weight: Tensor) -> Tensor:
    """The last id of the vocabulary gets the row before."""
    clamped = step.token_ids.clamp(max=max(0, weight.shape[0] - 2))
    return exact("embedding")(replace(step, token_ids=clamped), weight)


@mutant("AC-OP-001", op="select_rows")
def select_rows_sorts(x: Tensor, step: Step) -> Tensor:
    """Rows come in rising order."""
    return exact("select_rows")(x, replace(step, logit_rows=step.logit_rows.sort().values))


@mutant("AC-OP-001", op="argmax")
def argmax_sees_one_block(logits: Tensor) -> Tensor:
    """Only the first 128 logits are compared."""
    return exact("argmax")(logits[:, :128])


@mutant("AC-OP-001", op="sample")
def sample_takes_one_more(logits: Tensor, temperature: Tensor, top_k: Tensor, *rest: Tensor) -> Tensor:
    """top_k keeps one token too many."""
    return exact("sample")(logits, temperature, torch.where(top_k > 0, top_k + 1, top_k), *rest)


@mutant("AC-OP-001", op="apply_penalties")
def penalties_count_padding(logits: Tensor, rows: Tensor, prompt: Tensor, output: Tensor, *rest: Tensor) -> Tensor:
    """The -1 behind the end counts as token 0."""
    return exact("apply_penalties")(logits, rows, prompt.clamp(min=0), output.clamp(min=0), *rest)


@mutant("AC-OP-001", op="apply_logit_bias")
def bias_replaces_the_logit(logits: Tensor, rows: Tensor, token_ids: Tensor, bias: Tensor) -> Tensor:
    """The bias is stored instead of added."""
    logits[rows, token_ids] = bias
    return logits


@mutant("AC-OP-001", op="qk_norm_rope")
def qk_norm_rope_has_one_weight(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, *rest: Any) -> Any:
    """The keys are normalised with the queries' weight."""
    return exact("qk_norm_rope")(q, k, q_weight, q_weight, *rest)


@mutant("AC-OP-001", "AC-KV-007", op="kv_write")
def kv_write_swaps_keys_and_values(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, step: Step, group: int = 0
) -> Any:
    """Keys go to the values' cache and values to the keys'."""
    return exact("kv_write")(v, k, k_cache, v_cache, step, group)


@mutant("AC-OP-001", op="paged_attention")
def attention_scales_twice(q: Tensor, k_cache: Tensor, v_cache: Tensor, step: Step, scale: float, *rest: Any) -> Tensor:
    """The scale goes over queries and over scores."""
    return exact("paged_attention")(q, k_cache, v_cache, step, scale * scale, *rest)


# heads, pages, contexts


@mutant("AC-OP-002", op="paged_attention")
def attention_window_is_one_wider(*args: Any) -> Tensor:
    """A query sees one position more than the window."""
    return exact("paged_attention")(*with_argument("paged_attention", args, window=lambda seen: seen and seen + 1))


@mutant("AC-OP-002", op="paged_attention")
def attention_caps_before_it_scales(*args: Any) -> Tensor:
    """The soft cap goes over the unscaled products."""
    scale = args[4]
    return exact("paged_attention")(*with_argument("paged_attention", args, soft_cap=lambda cap: cap and cap * scale))


@mutant("AC-OP-002", op="paged_attention")
def attention_scales_its_sinks(*args: Any) -> Tensor:
    """Sinks are multiplied by the scale, as if they were products."""
    scale = args[4]
    scaled = with_argument("paged_attention", args, sinks=lambda sinks: None if sinks is None else sinks * scale)
    return exact("paged_attention")(*scaled)


@mutant("AC-OP-002", op="paged_attention")
def attention_loses_full_last_pages(q: Tensor, k_cache: Tensor, v_cache: Tensor, step: Step, *rest: Any) -> Tensor:
    """A context that ends with its page reads its first page in place of the last one."""
    entry = step.paged(0)
    table = entry.page_table.clone()
    for row, context in enumerate(step.context_lens_host):
        if context % step.page_size == 0:
            table[row, context // step.page_size - 1] = table[row, 0]
    changed = replace(step, groups=(Paged(table, entry.slots),))
    return exact("paged_attention")(q, k_cache, v_cache, changed, *rest)


@mutant("AC-OP-002", op="rope")
def rope_turns_64_dimensions(q: Tensor, k: Tensor, step: Step, table: Tensor) -> Any:
    """What lies behind the 64th dimension of a head is not turned."""
    turned = exact("rope")(q, k, step, table)
    return tuple(torch.cat((new[..., :64], old[..., 64:]), -1) for new, old in zip(turned, (q, k), strict=True))


@mutant("AC-OP-002", op="kv_write")
def kv_write_takes_six_bits_of_a_slot(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, step: Step, group: int = 0
) -> Any:
    """In pages of more than 64 tokens the offset wraps around."""
    size, entry = k_cache.shape[1], step.paged(group)
    wrapped = entry.slots // size * size + entry.slots % size % 64
    changed = replace(step, groups=(Paged(entry.page_table, wrapped),))
    return exact("kv_write")(k, v, k_cache, v_cache, changed, group)


# no rows, special numbers


@mutant("AC-OP-004", op="linear")
def linear_returns_no_columns(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """For no rows the result has no columns either."""
    return exact("linear")(x, weight, bias) if x.numel() else x.new_empty(0)


@mutant("AC-OP-006", op="apply_logit_bias")
def bans_are_finite(logits: Tensor, rows: Tensor, token_ids: Tensor, bias: Tensor) -> Tensor:
    """A ban lowers the logit by 10000 only."""
    return exact("apply_logit_bias")(logits, rows, token_ids, bias.clamp(min=-1e4))


@mutant("AC-OP-008", op="mul")
def mul_loses_the_sign_of_zero(x: Tensor, y: Tensor) -> Tensor:
    """Products are added to a cleared accumulator."""
    return x * y + 0.0


@mutant("AC-OP-008", op="kv_write")
def kv_write_loses_the_sign_of_zero(k: Tensor, v: Tensor, *rest: Tensor) -> Any:
    """Keys and values pass through an addition."""
    return exact("kv_write")(k + 0.0, v + 0.0, *rest)


# draws and large offsets


@mutant("AC-OP-016", op="sample")
def sample_leaves_out_the_crossing(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, *rest: Any
) -> Any:
    """top_p is reached a little earlier than asked for."""
    return exact("sample")(logits, temperature, top_k, torch.where(top_p < 1, top_p * 0.9, top_p), *rest)


@mutant("AC-OP-016", op="sample")
def sample_multiplies_by_the_temperature(logits: Tensor, temperature: Tensor, *rest: Tensor) -> Tensor:
    """Logits are multiplied by the temperature, not divided."""
    return exact("sample")(logits, 1 / temperature, *rest)


@mutant("AC-OP-019", op="kv_write")
def kv_write_counts_in_float(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, step: Step, group: int = 0) -> Any:
    """The place of each element is computed in float32."""
    width = k_cache.shape[2] * k_cache.shape[3]
    at = ((step.paged(group).slots.float() * width).unsqueeze(1) + torch.arange(width).float()).long()
    for new, cache in ((k, k_cache), (v, v_cache)):
        cache.view(-1)[at.clamp(max=cache.numel() - 1)] = new.flatten(1).to(cache.dtype)
    return k_cache, v_cache


__all__ = [
    "add_rms_norm_returns_the_old_residual",
    "argmax_sees_one_block",
    "attention_caps_before_it_scales",
    "attention_loses_full_last_pages",
    "attention_scales_its_sinks",
    "attention_scales_twice",
    "attention_window_is_one_wider",
    "bans_are_finite",
    "bias_replaces_the_logit",
    "embedding_misses_the_last_row",
    "exact",
    "experts_overwrite_their_input",
    "ffn_has_up_first",
    "kv_write_counts_in_float",
    "kv_write_loses_the_sign_of_zero",
    "kv_write_swaps_keys_and_values",
    "kv_write_takes_six_bits_of_a_slot",
    "linear_returns_no_columns",
    "linear_sums_in_half",
    "mha_ignores_the_output_bias",
    "mul_loses_the_sign_of_zero",
    "penalties_count_padding",
    "qk_norm_rope_has_one_weight",
    "rope_turns_64_dimensions",
    "sample_leaves_out_the_crossing",
    "sample_multiplies_by_the_temperature",
    "sample_takes_one_more",
    "select_rows_sorts",
]
