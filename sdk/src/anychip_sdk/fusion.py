"""What a fusion is, and in which order fusions are applied. Knows no graph; the platform rewrites it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from anychip_sdk.policies import POLICIES


@dataclass(frozen=True)
class Fusion:
    """A rewrite of catalogue ops into others.

    `pattern` and `replacement` are plain functions with the same parameters over the callables of anychip_sdk.ops.
    Each parameter stands for any value; one whose name is in `constants` stands for a plain number and must be equal
    wherever it occurs. They return the same number of results. Near misses that are never rewritten: an intermediate
    that something else uses too, a constant that differs between its places, or, in a replacement that joins weights
    with `concat_rows`, operands that aren't parameters of the model.

    A fusion is applied only if each op in `needs` has a kernel of the backend itself (not the fallback), and only under
    its policy: a built-in one, which it then adds to, or one of the backend's own.
    """

    policy: str  #: the name in a recipe's fusion.policies
    name: str
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    needs: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()


def policies_with(fusions: Iterable[Fusion]) -> tuple[str, ...]:
    """Every policy in the order of application: the built-in ones, then those that a backend's fusions bring."""
    return tuple(dict.fromkeys((*POLICIES, *(fusion.policy for fusion in fusions))))


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


__all__ = ["POLICIES", "Fusion", "concat_rows", "policies_with", "split_rows"]
