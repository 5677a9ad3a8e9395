"""When and where queries and keys are turned. Knows no struct and no call."""

from __future__ import annotations

from typing import NamedTuple

import torch


class DeferredRope(NamedTuple):
    """A rotation that is left to the write of its keys: one instruction turns both and writes the keys."""

    queries: torch.Tensor
    queries_out: torch.Tensor
    keys: torch.Tensor
    norms: tuple[torch.Tensor | None, torch.Tensor | None]
    eps: float
    table: torch.Tensor


class RopePlan(NamedTuple):
    """How queries and keys may be turned.

    Attributes:
        is_late: with the write of the keys; nobody reads either before.
        may_overwrite_q: nobody else reads them as they were.
        may_overwrite_k: likewise.
    """

    is_late: bool
    may_overwrite_q: bool
    may_overwrite_k: bool


__all__ = ["DeferredRope", "RopePlan"]
