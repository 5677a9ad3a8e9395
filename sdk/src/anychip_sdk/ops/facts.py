"""What a kernel may require of a call: its plain arguments, and a product's weight. Knows shapes; knows no kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from anychip_sdk.ops.base import Op

EXPERTS = ("moe_experts", "moe_experts_int4", "moe_experts_int8")
PRODUCTS = ("linear", "linear_int4", "linear_int8", "lm_head", "lm_head_int8")


def argument_facts(op: Op, args: Sequence[Any]) -> dict[str, Union[int, float, str, bool, None]]:
    """Plain arguments by the schema's names; of an optional tensor None where it is absent, True where it is given.

    Args:
        op: the catalogue's op.
        args: all of its arguments; tensors may be anything that stands for them.
    """
    facts: dict[str, Union[int, float, str, bool, None]] = {}
    for arg, value in zip(op.args, args, strict=True):
        if value is None or isinstance(value, (int, float, str, bool)):
            facts[arg.name] = value
        elif arg.optional and arg.shape:
            facts[arg.name] = True
    return facts


def product_facts(op: Op, shapes: Mapping[str, Sequence[int]]) -> dict[str, int | bool]:
    """in_features, out_features and bias; group_size too where values share a scale, 0 if a whole row does.

    Ops on the experts of a mixture have experts, hidden_features, inner_features, bias, and group_size (the smaller of
    their two products'); the router has experts. Other ops have no such facts.

    Args:
        op: the catalogue's op.
        shapes: of its tensors by the schema's names; absent ones are left out.
    """
    if op.name in EXPERTS:
        return _expert_facts(op, shapes)
    if op.name == "router_topk":
        return {"experts": shapes["weight"][0]}
    if op.name not in PRODUCTS:
        return {}
    rows, columns = shapes["weight"]
    if op.name == "linear_int4":
        columns *= 2  # two values lie in a byte
    facts: dict[str, int | bool] = {"out_features": rows, "in_features": columns, "bias": "bias" in shapes}
    if "scale" in shapes:
        groups = shapes["scale"][-1]
        facts["group_size"] = columns // groups if groups > 1 else 0
    return facts


def _expert_facts(op: Op, shapes: Mapping[str, Sequence[int]]) -> dict[str, int | bool]:
    experts, hidden, inner = shapes["down_weight"]
    columns = [shapes["gate_up_weight"][-1], inner]
    if op.name == "moe_experts_int4":
        columns = [2 * one for one in columns]  # two values lie in a byte
    facts: dict[str, int | bool] = {
        "experts": experts,
        "hidden_features": hidden,
        "inner_features": columns[1],
        "bias": "gate_up_bias" in shapes or "down_bias" in shapes,
    }
    if "gate_up_scale" in shapes:
        groups = [shapes[name][-1] for name in ("gate_up_scale", "down_scale")]
        sizes = [one // many for one, many in zip(columns, groups, strict=True) if many > 1]
        facts["group_size"] = min(sizes, default=0)
    return facts


__all__ = ["EXPERTS", "PRODUCTS", "argument_facts", "product_facts"]
