"""Everything that one forward needs besides weights and states, as one object that graphs hand on and only ops read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

import torch


@dataclass(frozen=True)
class Paged:
    """Where a step's tokens lie in the pages of one group of states."""

    page_table: torch.Tensor  #: int32 [rows, pages_max], on the device; behind a row's pages: 0
    slots: (
        torch.Tensor
    )  #: int64 [tokens], on the device: page * page_size + offset, where each token's entry is written


@dataclass(frozen=True)
class Slots:
    """Which slot of a group holds each row's state; a new sequence's slot holds zeros."""

    slots: torch.Tensor  #: int64 [rows], on the device; all different


GroupEntry = Union[Paged, Slots]


@dataclass(frozen=True)
class StepLimits:
    """The most that one step can hold, for buffers that are made once."""

    tokens: int
    rows: int
    pages: int  #: of one row
    device: torch.device


@dataclass(frozen=True)
class Step:
    """The rows of one ragged forward; rows are sequences.

    Decode rows (one query token each) come first, then prefill rows. The query tokens of row r are
    query_start[r] .. query_start[r+1]-1 and are the last ones of the sequence: its token j stands at position
    context_lens[r] - query_len[r] + j. The entry of position p lies in slot
    page_table[r, p // page_size] * page_size + p % page_size of each paged group.
    """

    token_ids: torch.Tensor  #: int64 [tokens], on the device
    positions: torch.Tensor  #: int64 [tokens], on the device
    query_start: torch.Tensor  #: int32 [rows + 1], on the device
    context_lens: torch.Tensor  #: int32 [rows], on the device; tokens with an entry, this step's included
    logit_rows: torch.Tensor  #: int64 [logits], on the device: the tokens whose logits are wanted
    groups: tuple[GroupEntry, ...]  #: one for each of the model's groups of states, in their order
    page_size: int
    decode_rows: int  #: how many of the first rows have exactly one query token
    query_lens_host: tuple[int, ...]
    context_lens_host: tuple[int, ...]
    embeddings: torch.Tensor | None = None  #: [tokens, hidden] in place of the ids' rows of the embedding
    extras: Mapping[str, torch.Tensor] = field(default_factory=dict)  #: what else rows have, by name: [rows, ...]

    @property
    def rows(self) -> int:
        return len(self.query_lens_host)

    @property
    def tokens(self) -> int:
        return len(self.positions)

    def paged(self, group: int) -> Paged:
        """The entry of a paged group.

        Raises:
            TypeError: the group keeps slots.
        """
        entry = self.groups[group]
        if not isinstance(entry, Paged):
            message = f"group {group} of the step's states keeps slots, an op reads it as pages"
            raise TypeError(message)
        return entry

    def slotted(self, group: int) -> Slots:
        """The entry of a slot group.

        Raises:
            TypeError: the group keeps pages.
        """
        entry = self.groups[group]
        if not isinstance(entry, Slots):
            message = f"group {group} of the step's states keeps pages, an op reads it as slots"
            raise TypeError(message)
        return entry

    def to(self, device: torch.device) -> Step:
        """A copy whose tensors are on the device; entries that are one object stay one."""
        moved: dict[int, GroupEntry] = {}
        for entry in self.groups:
            moved.setdefault(id(entry), _moved(entry, device))
        return Step(
            token_ids=self.token_ids.to(device, copy=True),
            positions=self.positions.to(device, copy=True),
            query_start=self.query_start.to(device, copy=True),
            context_lens=self.context_lens.to(device, copy=True),
            logit_rows=self.logit_rows.to(device, copy=True),
            groups=tuple(moved[id(entry)] for entry in self.groups),
            page_size=self.page_size,
            decode_rows=self.decode_rows,
            query_lens_host=self.query_lens_host,
            context_lens_host=self.context_lens_host,
            embeddings=None if self.embeddings is None else self.embeddings.to(device, copy=True),
            extras={name: value.to(device, copy=True) for name, value in self.extras.items()},
        )

    def limits(self) -> StepLimits:
        """The limits that this step just fits."""
        tables = [entry.page_table.shape[-1] for entry in self.groups if isinstance(entry, Paged)]
        return StepLimits(self.tokens, self.rows, max(tables, default=0), self.positions.device)


def _moved(entry: GroupEntry, device: torch.device) -> GroupEntry:
    if isinstance(entry, Paged):
        return Paged(entry.page_table.to(device, copy=True), entry.slots.to(device, copy=True))
    return Slots(entry.slots.to(device, copy=True))


__all__ = ["GroupEntry", "Paged", "Slots", "Step", "StepLimits"]
