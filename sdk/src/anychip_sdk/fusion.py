"""What a fusion is: a pattern and a replacement over catalogue ops. Knows no graph; the platform rewrites it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

POLICIES = (
    "qkv_proj",
    "gate_up_proj",
    "add_rms_norm",
    "qk_norm_rope",
    "silu_mul",
    "mha",
    "ffn",
    "shared_experts",
)


@dataclass(frozen=True)
class Fusion:
    """A rewrite of catalogue ops into others.

    `pattern` and `replacement` are plain functions with the same parameters over the callables of anychip_sdk.ops.
    Each parameter stands for any value; one whose name is in `constants` stands for a plain number and must be equal
    wherever it occurs. They return the same number of results. Near misses that are never rewritten: an intermediate
    that something else uses too, a constant that differs between its places, or, in a replacement that joins weights
    with `concat_rows`, operands that aren't parameters of the model.

    A fusion is applied only if each op in `needs` has a kernel of the backend itself (not the fallback).
    """

    policy: str  #: the name in a recipe's fusion.policies
    name: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    needs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


def concat_rows(*weights: Any) -> Any:
    """In a replacement: the weights joined along dim 0 when they are loaded, not when the graph runs.

    None operands are allowed if all are None (absent biases).
    """
    if has_torch_function(weights):
        return handle_torch_function(concat_rows, weights, *weights)
    if all(weight is None for weight in weights):
        return None
    return torch.cat(weights, dim=0)


def split_rows(x: Any, *weights: Any) -> Any:
    """In a replacement: the last dimension of x split into parts as long as the weights have rows.

    The platform turns it into a plain split with the sizes filled in.
    """
    if has_torch_function((x, *weights)):
        return handle_torch_function(split_rows, (x, *weights), x, *weights)
    return x.split([weight.shape[0] for weight in weights], dim=-1)


__all__ = ["POLICIES", "Fusion", "concat_rows", "split_rows"]
