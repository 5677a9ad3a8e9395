"""What a model's modules keep between steps, as data from which names, caches, bytes, copies and layouts derive.

Two kinds. *Paged* state has an entry per token and lies in pages: keys and values, a latent vector. *Slot* state has
one entry per sequence, which each step reads and replaces: a recurrent state. Modules with equal specs form a group; a
pool allocates groups, and a step has one entry per group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

StateKind = Literal["paged", "slot"]


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a state.

    Attributes:
        name: unique within the state, e.g. "k".
        shape: of a token's entry (paged) or of a sequence's (slot).
        dtype: None: the pool's, which the recipe chooses.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None

    def nbytes(self, dtype: torch.dtype) -> int:
        """Of one entry in a pool of `dtype`."""
        return math.prod(self.shape) * (self.dtype or dtype).itemsize


@dataclass(frozen=True)
class StateSpec:
    """What one module keeps.

    Attributes:
        name: what it is, e.g. "kv"; for people and for kernels' requirements.
        kind: paged or slot.
        tensors: at least one.
        window: paged only: no query reads a token's entry once so many later tokens follow; None: all are read.
    """

    name: str
    kind: StateKind
    tensors: tuple[StateTensor, ...]
    window: int | None = None

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not names or len(set(names)) != len(names):
            message = f"state {self.name!r}: tensors {names}, expected at least one and no name twice"
            raise ValueError(message)
        if self.kind == "slot" and self.window is not None:
            message = f"state {self.name!r}: a slot has no window, got {self.window}"
            raise ValueError(message)

    def nbytes(self, dtype: torch.dtype) -> int:
        """Of one token's or one sequence's entry, all tensors, in a pool of `dtype`."""
        return sum(tensor.nbytes(dtype) for tensor in self.tensors)


@dataclass(frozen=True)
class StateGroup:
    """Modules that keep equal states; `layers` is their number, and they are numbered from 0 in the model's order."""

    spec: StateSpec
    layers: int

    def nbytes(self, dtype: torch.dtype) -> int:
        """Of one token's or one sequence's entries in all layers."""
        return self.layers * self.spec.nbytes(dtype)


def grouped(specs: Sequence[StateSpec]) -> tuple[tuple[StateGroup, ...], tuple[tuple[int, int], ...]]:
    """The groups of a model's states in order of first appearance, and each state's (group, layer)."""
    order: dict[StateSpec, int] = {}
    counts: list[int] = []
    places = []
    for spec in specs:
        group = order.setdefault(spec, len(order))
        if group == len(counts):
            counts.append(0)
        places.append((group, counts[group]))
        counts[group] += 1
    return tuple(StateGroup(spec, counts[group]) for spec, group in order.items()), tuple(places)


def bytes_per_token(groups: Iterable[StateGroup], dtype: torch.dtype) -> int:
    """Of all paged groups together."""
    return sum(group.nbytes(dtype) for group in groups if group.spec.kind == "paged")


def bytes_per_slot(groups: Iterable[StateGroup], dtype: torch.dtype) -> int:
    """Of all slot groups together."""
    return sum(group.nbytes(dtype) for group in groups if group.spec.kind == "slot")


__all__ = [
    "StateGroup",
    "StateKind",
    "StateSpec",
    "StateTensor",
    "bytes_per_slot",
    "bytes_per_token",
    "grouped",
]
