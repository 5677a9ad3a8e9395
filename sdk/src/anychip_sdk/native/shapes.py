"""What an op's results look like, from its schema and its arguments. Knows symbolic dimensions; computes no value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from anychip_sdk.ops.base import Arg, Op


class Shaped(Protocol):
    """A tensor, or a prepared weight that remembers what it was."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> torch.dtype: ...


class Piece(NamedTuple):
    """A part of a result's shape: that slice of an argument's."""

    argument: int
    dims: slice


class ResultRule(NamedTuple):
    """How to make one result.

    `same_as` is the argument that it is, written in place; else a new tensor of the pieces' sizes, whose dtype is the
    argument's at `dtype_of`, or `dtype`.
    """

    same_as: int | None
    pieces: tuple[Piece, ...]
    dtype_of: int
    dtype: torch.dtype | None

    def shape(self, args: Sequence[Shaped]) -> tuple[int, ...]:
        return tuple(size for at, dims in self.pieces for size in args[at].shape[dims])


def result_rules(op: Op) -> tuple[ResultRule, ...]:
    """One rule for each result of an op.

    Raises:
        ValueError: the schema names a dimension that no required argument has.
    """
    own = next((i for i, arg in enumerate(op.args) if arg.shape and arg.dtype == "T"), 0)
    return tuple(_rule(op, result, own) for result in op.returns)


def _rule(op: Op, result: Arg, own: int) -> ResultRule:
    for index, arg in enumerate(op.args):
        if arg.mutated and arg.name == result.name:
            return ResultRule(index, (), index, None)
    found = _dimensions(op)
    pieces = []
    for name in _names(result.shape):
        if name not in found:
            message = f"{op.name}: no required argument has the dimension '{name}' of its result '{result.name}'"
            raise ValueError(message)
        pieces.append(found[name])
    dtype = None if result.dtype == "T" else getattr(torch, result.dtype)
    return ResultRule(None, tuple(pieces), own, dtype)


def _dimensions(op: Op) -> dict[str, Piece]:
    """Where each symbolic dimension is found; counted from the end, because "..." may stand in front."""
    found: dict[str, Piece] = {}
    for index, arg in enumerate(op.args):
        if arg.optional:
            continue
        names = _names(arg.shape)
        for place, name in enumerate(names):
            behind = len(names) - place - 1
            stop = -behind if behind else None
            found.setdefault(name, Piece(index, slice(None if name == "..." else -behind - 1, stop)))
    return found


def _names(shape: str) -> list[str]:
    inner = shape.strip("[]")
    return [name.strip() for name in inner.split(",")] if inner else []


__all__ = ["Piece", "ResultRule", "Shaped", "result_rules"]
