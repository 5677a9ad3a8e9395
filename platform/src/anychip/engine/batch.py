"""The work of one step. Knows sequences and counts; knows no tensor."""

from __future__ import annotations

import msgspec

from anychip.engine.sequence import Sequence
from anychip.engine.state_ops import StateOp


class Row(msgspec.Struct, frozen=True, eq=False):
    """A run of one sequence's tokens that goes through the model: tokens[start : start + count]."""

    sequence: Sequence
    start: int
    count: int
    samples: int  #: 0: a chunk before the prompt's end; 1: one token; n: the first token of each of n forks

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def sampled(self) -> tuple[Sequence, ...]:
        """Whose next token is sampled from this row's last logits, in the order that `commit` expects.

        Each has its own seed, position and parameters; before the fork all share the row's tokens.
        """
        if self.samples == 0:
            return ()
        return (self.sequence, *self.sequence.forks)


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Rows of one ragged forward: decodes (count 1) first, then chunks of prompts."""

    rows: tuple[Row, ...]
    decode_rows: int  #: how many of the first rows are decodes
    copies: tuple[tuple[int, int], ...] = ()  #: (source page, target page), all to be copied before the forward
    state_ops: tuple[StateOp, ...] = ()  #: to be run before the forward, in this order

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def samples(self) -> int:
        """How many tokens `commit` expects."""
        return sum(row.samples for row in self.rows)


__all__ = ["Batch", "Row"]
