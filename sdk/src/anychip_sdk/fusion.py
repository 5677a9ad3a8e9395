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


def slots_gate_up(experts: Any, *shared: Any) -> Any:
    """In a replacement: a mixture's [experts, 2 * inner, hidden] with a shared expert behind it, in slots.

    `shared` is its gate and its up weight, or both joined. The last slot is filled up with zeros.
    """
    if has_torch_function((experts, *shared)):
        return handle_torch_function(slots_gate_up, (experts, *shared), experts, *shared)
    inner = experts.shape[1] // 2
    halves = torch.cat(shared).chunk(2)
    padded = [torch.nn.functional.pad(half, (0, 0, 0, -half.shape[0] % inner)) for half in halves]
    slots = torch.cat([half.unflatten(0, (-1, inner)) for half in padded], dim=1)
    return torch.cat((experts, slots))


def slots_down(experts: Any, shared: Any) -> Any:
    """In a replacement: a mixture's [experts, hidden, inner] with a shared expert's down weight behind it, in slots."""
    if has_torch_function((experts, shared)):
        return handle_torch_function(slots_down, (experts, shared), experts, shared)
    inner = experts.shape[2]
    padded = torch.nn.functional.pad(shared, (0, -shared.shape[1] % inner))
    return torch.cat((experts, padded.unflatten(1, (-1, inner)).transpose(0, 1)))


def slot_count(experts: Any, shared: Any) -> Any:
    """In a replacement: how many slots `slots_down` adds."""
    if has_torch_function((experts, shared)):
        return handle_torch_function(slot_count, (experts, shared), experts, shared)
    return -(-shared.shape[1] // experts.shape[2])


__all__ = [
    "POLICIES",
    "Fusion",
    "concat_rows",
    "policies_with",
    "slot_count",
    "slots_down",
    "slots_gate_up",
    "split_rows",
]
