"""Which rank holds which expert where experts are shared out, and what ids are called there. Moves no tensor.

N experts in equal parts, and behind each rank's part the S slots of the shared expert, so that N + ranks * S experts
are held in all. Token t's slots are those of rank t mod ranks: each computes as many, and every term is added once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anychip.models.source import Source


@dataclass(frozen=True)
class ExpertRanks:
    """The layout of one mixture.

    Attributes:
        experts: N, a multiple of `ranks`.
        ranks: that share them.
        slots: S, of the shared expert on each rank; 0: it is no slot.
    """

    experts: int
    ranks: int
    slots: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.experts % self.ranks:
            message = f"{self.experts} experts can't be shared out equally among {self.ranks} ranks"
            raise ValueError(message)

    @property
    def local(self) -> int:
        """Experts that one rank holds, its slots included."""
        return self.experts // self.ranks + self.slots

    def first(self, rank: int) -> int:
        """The id of a rank's first expert: the argument `first` of `moe_experts` there."""
        return rank * self.local

    def physical(self, ids: torch.Tensor) -> torch.Tensor:
        """What a router's ids [tokens, columns] are called in this layout.

        Routed ones move behind the slots of the ranks before theirs; those of slots, which begin at N, become the slots
        of the rank that the token belongs to. Others stay outside of every rank.
        """
        own = self.experts // self.ranks
        tokens = torch.arange(ids.shape[0], device=ids.device).unsqueeze(1)
        slot = ids - self.experts
        home = (tokens % self.ranks) * self.local + own + slot
        routed = ids + torch.div(ids, own, rounding_mode="floor") * self.slots
        is_slot, is_routed = (slot >= 0) & (slot < self.slots), (ids >= 0) & (ids < self.experts)
        found = torch.where(is_slot, home, torch.where(is_routed, routed, torch.full_like(ids, -1)))
        return found.to(ids.dtype)

    def sources(self, sources: tuple[Source, ...], shape: tuple[int, ...], rank: int) -> tuple[Source, ...]:
        """Of a stack of N experts and then S slots, what one rank reads: its experts, and all slots.

        Args:
            sources: of the whole stack, none of which reaches from one expert into the next.
            shape: of the whole stack, [N + S, rows, columns].
            rank: whose part is wanted.
        """
        size = shape[1] * shape[2]
        own = self.experts // self.ranks
        wanted = [range(rank * own * size, (rank + 1) * own * size), range(self.experts * size, shape[0] * size)]
        found, at = [], 0
        for source in sources:
            if any(at in part for part in wanted):
                found.append(source)
            at += source.elements
        return tuple(found)


__all__ = ["ExpertRanks"]
