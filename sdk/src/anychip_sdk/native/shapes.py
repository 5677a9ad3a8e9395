"""What an op's results look like, from its schema and its arguments. Knows symbolic dimensions; computes no value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from anychip_sdk.ops.base import Arg, Op

FROM_STEP = ("tokens", "logits")  #: dimensions that the step has where no tensor has them


class Piece(NamedTuple):
    """A part of a result's shape: that slice of an argument's, or what the step has of a name."""

    argument: int
    dims: slice | str


class Total(NamedTuple):
    """A size that plain arguments add up to."""

    arguments: tuple[int, ...]


class ResultRule(NamedTuple):
    """How to make one result.

    `same_as` is the argument that it is, written in place; else a new tensor of the pieces' sizes, whose dtype is the
    argument's at `dtype_of`, or `dtype`.
    """

    same_as: int | None
    pieces: tuple[Piece | Total, ...]
    dtype_of: int
    dtype: torch.dtype | None

    def shape(self, args: Sequence[Any]) -> tuple[int, ...]:
        sizes: list[int] = []
        for piece in self.pieces:
            if isinstance(piece, Total):
                sizes.append(sum(args[at] for at in piece.arguments))
            elif isinstance(piece.dims, str):
                sizes.append(getattr(args[piece.argument], piece.dims))
            else:
                sizes.extend(args[piece.argument].shape[piece.dims])
        return tuple(sizes)

    @property
    def is_sized_by_step(self) -> bool:
        return any(isinstance(piece, Piece) and isinstance(piece.dims, str) for piece in self.pieces)

    @property
    def sized_by(self) -> tuple[int, ...]:
        """The plain arguments that the shape depends on."""
        return tuple(at for piece in self.pieces if isinstance(piece, Total) for at in piece.arguments)


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
    plain = {arg.name: index for index, arg in enumerate(op.args) if arg.is_plain}
    pieces: list[Piece | Total] = []
    for name in result.shape:
        parts = name.split(" + ")
        if name not in found and plain.keys() >= set(parts):
            pieces.append(Total(tuple(plain[part] for part in parts)))
            continue
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
        for place, name in enumerate(arg.shape):
            behind = len(arg.shape) - place - 1
            stop = -behind if behind else None
            found.setdefault(name, Piece(index, slice(None if name == "..." else -behind - 1, stop)))
    if op.step_index is not None:
        for name in FROM_STEP:
            found.setdefault(name, Piece(op.step_index, name))
    return found


__all__ = ["FROM_STEP", "Piece", "ResultRule", "Total", "result_rules"]
