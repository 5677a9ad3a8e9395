"""The built-in fusions, as patterns and replacements over catalogue ops. Knows the decoder's shape; knows no matcher.

Patterns are over unfused ops; they are applied in the order of anychip_sdk.fusion.POLICIES.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anychip.graph.shared_experts import SHARED_EXPERTS
from anychip_sdk.fusion import Fusion, concat_rows, split_rows
from anychip_sdk.ops import (
    add,
    add_rms_norm,
    ffn,
    gelu,
    gelu_mul,
    kv_write,
    linear,
    mha,
    mul,
    paged_attention,
    qk_norm_rope,
    rms_norm,
    rms_norm_offset,
    rope,
    silu,
    silu_mul,
)

ATTENTION_CONSTANTS = ("heads", "kv_heads", "head_dim", "scale", "window", "group", "soft_cap", "eps")
# fmt: off


def _attend(q: Any, k: Any, v: Any, step: Any, table: Any, k_cache: Any, v_cache: Any, scale: Any, window: Any,
            group: Any, soft_cap: Any = None, sinks: Any = None) -> Any:
    q, k = rope(q, k, step, table)
    return _attend_unturned(q, k, v, step, k_cache, v_cache, scale, window, group, soft_cap, sinks)


def _attend_unturned(q: Any, k: Any, v: Any, step: Any, k_cache: Any, v_cache: Any, scale: Any, window: Any,
                     group: Any, soft_cap: Any, sinks: Any) -> Any:
    k_cache, v_cache = kv_write(k, v, k_cache, v_cache, step, group)
    return paged_attention(q, k_cache, v_cache, step, scale, window, group, soft_cap, sinks)


def _project(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, heads: Any, kv_heads: Any,
             head_dim: Any) -> tuple[Any, Any, Any]:
    return (linear(x, wq, bq).view(-1, heads, head_dim), linear(x, wk, bk).view(-1, kv_heads, head_dim),
            linear(x, wv, bv).view(-1, kv_heads, head_dim))


def _project_once(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, heads: Any, kv_heads: Any,
                  head_dim: Any) -> tuple[Any, Any, Any]:
    joined = linear(x, concat_rows(wq, wk, wv), concat_rows(bq, bk, bv))
    q, k, v = split_rows(joined, wq, wk, wv)
    return q.view(-1, heads, head_dim), k.view(-1, kv_heads, head_dim), v.view(-1, kv_heads, head_dim)


def _plain(project: Callable[..., Any]) -> Callable[..., Any]:
    def attention(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, step: Any, table: Any, k_cache: Any,
                  v_cache: Any, heads: Any, kv_heads: Any, head_dim: Any, scale: Any, window: Any, group: Any,
                  soft_cap: Any, sinks: Any) -> Any:
        q, k, v = project(x, wq, wk, wv, bq, bk, bv, heads, kv_heads, head_dim)
        return _attend(q, k, v, step, table, k_cache, v_cache, scale, window, group, soft_cap, sinks)

    return attention


def _unturned(project: Callable[..., Any]) -> Callable[..., Any]:
    def attention(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, step: Any, k_cache: Any, v_cache: Any,
                  heads: Any, kv_heads: Any, head_dim: Any, scale: Any, window: Any, group: Any, soft_cap: Any,
                  sinks: Any) -> Any:
        q, k, v = project(x, wq, wk, wv, bq, bk, bv, heads, kv_heads, head_dim)
        return _attend_unturned(q, k, v, step, k_cache, v_cache, scale, window, group, soft_cap, sinks)

    return attention


def _normed(norm: Callable[..., Any], project: Callable[..., Any]) -> Callable[..., Any]:
    def attention(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, nq: Any, nk: Any, eps: Any, step: Any,
                  table: Any, k_cache: Any, v_cache: Any, heads: Any, kv_heads: Any, head_dim: Any, scale: Any,
                  window: Any, group: Any, soft_cap: Any, sinks: Any) -> Any:
        q, k, v = project(x, wq, wk, wv, bq, bk, bv, heads, kv_heads, head_dim)
        q, k = norm(q, nq, eps), norm(k, nk, eps)
        return _attend(q, k, v, step, table, k_cache, v_cache, scale, window, group, soft_cap, sinks)

    return attention


def _block_plain(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, step: Any, table: Any, k_cache: Any,
                 v_cache: Any, heads: Any, kv_heads: Any, head_dim: Any, scale: Any, window: Any, group: Any, wo: Any,
                 bo: Any) -> Any:
    mixed = _plain(_project)(x, wq, wk, wv, bq, bk, bv, step, table, k_cache, v_cache, heads, kv_heads, head_dim, scale,
                             window, group, None, None)
    return linear(mixed.flatten(1), wo, bo)


def _block_plain_mha(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, step: Any, table: Any,
                     k_cache: Any, v_cache: Any, heads: Any, kv_heads: Any, head_dim: Any, scale: Any, window: Any,
                     group: Any, wo: Any, bo: Any) -> Any:
    # without q and k weights the norm's eps is never read
    out, _, _ = mha(x, concat_rows(wq, wk, wv), concat_rows(bq, bk, bv), None, None, 0.0, table, k_cache, v_cache,
                    step, wo, bo, heads, scale, window, group)
    return out


def _block_normed(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, nq: Any, nk: Any, eps: Any,
                  step: Any, table: Any, k_cache: Any, v_cache: Any, heads: Any, kv_heads: Any, head_dim: Any,
                  scale: Any, window: Any, group: Any, wo: Any, bo: Any) -> Any:
    mixed = _normed(rms_norm, _project)(x, wq, wk, wv, bq, bk, bv, nq, nk, eps, step, table, k_cache, v_cache, heads,
                                        kv_heads, head_dim, scale, window, group, None, None)
    return linear(mixed.flatten(1), wo, bo)


def _block_normed_mha(x: Any, wq: Any, wk: Any, wv: Any, bq: Any, bk: Any, bv: Any, nq: Any, nk: Any, eps: Any,
                      step: Any, table: Any, k_cache: Any, v_cache: Any, heads: Any, kv_heads: Any, head_dim: Any,
                      scale: Any, window: Any, group: Any, wo: Any, bo: Any) -> Any:
    out, _, _ = mha(x, concat_rows(wq, wk, wv), concat_rows(bq, bk, bv), nq, nk, eps, table, k_cache, v_cache, step,
                    wo, bo, heads, scale, window, group)
    return out


# fmt: on
def _mlp(x: Any, wg: Any, bg: Any, wu: Any, bu: Any, wd: Any, bd: Any) -> Any:
    return linear(mul(silu(linear(x, wg, bg)), linear(x, wu, bu)), wd, bd)


def _mlp_ffn(x: Any, wg: Any, bg: Any, wu: Any, bu: Any, wd: Any, bd: Any) -> Any:
    return ffn(x, concat_rows(wg, wu), concat_rows(bg, bu), wd, bd)


def _gated_silu(x: Any, wg: Any, bg: Any, wu: Any, bu: Any) -> Any:
    return mul(silu(linear(x, wg, bg)), linear(x, wu, bu))


def _gated_silu_once(x: Any, wg: Any, bg: Any, wu: Any, bu: Any) -> Any:
    gate, up = split_rows(linear(x, concat_rows(wg, wu), concat_rows(bg, bu)), wg, wu)
    return mul(silu(gate), up)


def _gated_gelu(x: Any, wg: Any, bg: Any, wu: Any, bu: Any) -> Any:
    return mul(gelu(linear(x, wg, bg)), linear(x, wu, bu))


def _gated_gelu_once(x: Any, wg: Any, bg: Any, wu: Any, bu: Any) -> Any:
    gate, up = split_rows(linear(x, concat_rows(wg, wu), concat_rows(bg, bu)), wg, wu)
    return mul(gelu(gate), up)


def _sum_then_norm(x: Any, y: Any, weight: Any, eps: Any) -> Any:
    total = add(x, y)
    return rms_norm(total, weight, eps), total


def _sum_and_norm(x: Any, y: Any, weight: Any, eps: Any) -> Any:
    normed, total = add_rms_norm(x, y, weight, eps)
    return normed, total


def _norms_then_rope(q: Any, k: Any, nq: Any, nk: Any, eps: Any, step: Any, table: Any) -> Any:
    q, k = rope(rms_norm(q, nq, eps), rms_norm(k, nk, eps), step, table)
    return q, k


def _norms_and_rope(q: Any, k: Any, nq: Any, nk: Any, eps: Any, step: Any, table: Any) -> Any:
    q, k = qk_norm_rope(q, k, nq, nk, eps, step, table)
    return q, k


def _silu_then_mul(gate: Any, up: Any) -> Any:
    return mul(silu(gate), up)


def _gelu_then_mul(gate: Any, up: Any) -> Any:
    return mul(gelu(gate), up)


def _silu_and_mul(gate: Any, up: Any) -> Any:
    return silu_mul(gate, up)


def _gelu_and_mul(gate: Any, up: Any) -> Any:
    return gelu_mul(gate, up)


FUSIONS: tuple[Fusion, ...] = (
    Fusion("mha", "mha", _block_plain, _block_plain_mha, ("mha",), ATTENTION_CONSTANTS),
    Fusion("mha", "mha with qk norm", _block_normed, _block_normed_mha, ("mha",), ATTENTION_CONSTANTS),
    Fusion("ffn", "ffn", _mlp, _mlp_ffn, ("ffn",)),
    *SHARED_EXPERTS,
    Fusion("qkv_proj", "qkv_proj", _plain(_project), _plain(_project_once), (), ATTENTION_CONSTANTS),
    *(
        Fusion("qkv_proj", name, _normed(norm, _project), _normed(norm, _project_once), (), ATTENTION_CONSTANTS)
        for name, norm in (("qkv_proj with qk norm", rms_norm), ("qkv_proj with qk norm from 1", rms_norm_offset))
    ),
    Fusion("qkv_proj", "qkv_proj, unturned", _unturned(_project), _unturned(_project_once), (), ATTENTION_CONSTANTS),
    Fusion("gate_up_proj", "gate_up_proj", _gated_silu, _gated_silu_once),
    Fusion("gate_up_proj", "gate_up_proj with gelu", _gated_gelu, _gated_gelu_once),
    Fusion("add_rms_norm", "add_rms_norm", _sum_then_norm, _sum_and_norm, ("add_rms_norm",), ("eps",)),
    Fusion("qk_norm_rope", "qk_norm_rope", _norms_then_rope, _norms_and_rope, ("qk_norm_rope",), ("eps",)),
    Fusion("silu_mul", "silu_mul", _silu_then_mul, _silu_and_mul, ("silu_mul",)),
    Fusion("silu_mul", "gelu_mul", _gelu_then_mul, _gelu_and_mul, ("gelu_mul",)),
)

__all__ = ["FUSIONS"]
