"""A shared expert as further experts of the mixture beside it. Knows the mixture's shape; knows no matcher.

Written over unfused ops, and over the MLP as one op, which the policy `ffn` makes of it before. The slots' columns come
behind the chosen experts', each with the weight 1 or the gate's. Parameters are x, the router's weight, bias and
selection bias, its plain arguments, the experts' gate and up and down weights, and the shared expert's.
"""

from __future__ import annotations

from typing import Any

from anychip_sdk.fusion import Fusion, slot_count, slots_down, slots_gate_up
from anychip_sdk.ops import add, ffn, gate_rows, linear, moe_experts, mul, router_topk, silu

NEEDS = ("moe_experts", "router_topk")
POLICY = "shared_experts"
# fmt: off


def _routed(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any, floor: Any,
            factor: Any, gu: Any, dn: Any) -> Any:
    ids, weights = router_topk(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, None, 0)
    return moe_experts(x, ids, weights, gu, None, dn, None, "silu", False, 0)


def _mlp(x: Any, wg: Any, wu: Any, wd: Any) -> Any:
    return linear(mul(silu(linear(x, wg, None)), linear(x, wu, None)), wd, None)


def _shared(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any, floor: Any,
            factor: Any, gu: Any, dn: Any, wg: Any, wu: Any, wd: Any) -> Any:
    out = _routed(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, gu, dn)
    return add(out, _mlp(x, wg, wu, wd))


def _shared_in_slots(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any,
                     floor: Any, factor: Any, gu: Any, dn: Any, wg: Any, wu: Any, wd: Any) -> Any:
    slots = slot_count(dn, wd)
    ids, weights = router_topk(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, None, slots)
    more = slots_gate_up(gu, wg, wu), None, slots_down(dn, wd), None
    return moe_experts(x, ids, weights, *more, "silu", False, 0)


def _gated(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any, floor: Any,
           factor: Any, gu: Any, dn: Any, wg: Any, wu: Any, wd: Any, gate: Any) -> Any:
    out = _routed(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, gu, dn)
    return add(out, gate_rows(_mlp(x, wg, wu, wd), linear(x, gate, None)))


def _gated_in_slots(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any,
                    floor: Any, factor: Any, gu: Any, dn: Any, wg: Any, wu: Any, wd: Any, gate: Any) -> Any:
    slots = slot_count(dn, wd)
    ids, weights = router_topk(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, gate, slots)
    more = slots_gate_up(gu, wg, wu), None, slots_down(dn, wd), None
    return moe_experts(x, ids, weights, *more, "silu", False, 0)


def _ffn(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any, floor: Any,
         factor: Any, gu: Any, dn: Any, wgu: Any, wd: Any) -> Any:
    out = _routed(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, gu, dn)
    return add(out, ffn(x, wgu, None, wd, None))


def _ffn_in_slots(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any, floor: Any,
                  factor: Any, gu: Any, dn: Any, wgu: Any, wd: Any) -> Any:
    slots = slot_count(dn, wd)
    ids, weights = router_topk(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, None, slots)
    more = slots_gate_up(gu, wgu), None, slots_down(dn, wd), None
    return moe_experts(x, ids, weights, *more, "silu", False, 0)


def _ffn_gated(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any, floor: Any,
               factor: Any, gu: Any, dn: Any, wgu: Any, wd: Any, gate: Any) -> Any:
    out = _routed(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, gu, dn)
    return add(out, gate_rows(ffn(x, wgu, None, wd, None), linear(x, gate, None)))


def _ffn_gated_in_slots(x: Any, w: Any, b: Any, s: Any, k: Any, score: Any, g: Any, tg: Any, gs: Any, norm: Any,
                        floor: Any, factor: Any, gu: Any, dn: Any, wgu: Any, wd: Any, gate: Any) -> Any:
    slots = slot_count(dn, wd)
    ids, weights = router_topk(x, w, b, s, k, score, g, tg, gs, norm, floor, factor, gate, slots)
    more = slots_gate_up(gu, wgu), None, slots_down(dn, wd), None
    return moe_experts(x, ids, weights, *more, "silu", False, 0)


# fmt: on
SHARED_EXPERTS: tuple[Fusion, ...] = (
    Fusion(POLICY, POLICY, _shared, _shared_in_slots, NEEDS),
    Fusion(POLICY, "shared_experts with a gate", _gated, _gated_in_slots, NEEDS),
    Fusion(POLICY, "shared_experts as ffn", _ffn, _ffn_in_slots, NEEDS),
    Fusion(POLICY, "shared_experts as ffn with a gate", _ffn_gated, _ffn_gated_in_slots, NEEDS),
)

__all__ = ["SHARED_EXPERTS"]
