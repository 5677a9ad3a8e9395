"""Rotary embedding of queries and keys in one pass where they lie side by side. Knows the half-split pairs only."""

from __future__ import annotations

from typing import NamedTuple

import torch

from anychip_cpu.kernels.norm import scaled
from anychip_sdk.step import Step

SIGNS = torch.tensor([[-1.0], [1.0]])
#: how many numbers are worked on at a time
BLOCK_ELEMENTS = 1 << 17


class Angles(NamedTuple):
    """Per token, for both halves of a head: [tokens, 1, 1, half] and [tokens, 1, 2, half], the sines signed."""

    cos: torch.Tensor
    sin: torch.Tensor


class Norms(NamedTuple):
    """Weights of the normalisation: the first `heads` heads are queries, the others keys."""

    heads: int
    q_weight: torch.Tensor
    k_weight: torch.Tensor
    eps: float


def angles(positions: torch.Tensor, table: torch.Tensor) -> Angles:
    rows = table.index_select(0, positions)[:, None, None, :]
    half = rows.shape[-1] // 2
    return Angles(rows[..., :half], rows[..., half:] * SIGNS)


def turned(heads: torch.Tensor, turn: Angles, norms: Norms | None = None) -> torch.Tensor:
    """Heads [tokens, heads, head_dim], normalised if norms are given, turned by the angles and rounded.

    Long inputs go in blocks whose float32 temporaries stay in the cache: that halves the time of a prefill chunk.
    """
    block = max(1, BLOCK_ELEMENTS // max(1, heads[0].numel() if len(heads) else 1))
    if len(heads) <= block:
        return _turned(heads, turn, norms)
    out = torch.empty(heads.shape, dtype=heads.dtype)
    for start in range(0, len(heads), block):
        part = slice(start, start + block)
        out[part] = _turned(heads[part], Angles(turn.cos[part], turn.sin[part]), norms)
    return out


def _turned(heads: torch.Tensor, turn: Angles, norms: Norms | None) -> torch.Tensor:
    if norms is None:
        wide = heads.float()
    else:
        wide = scaled(heads, norms.eps)
        wide[:, : norms.heads].mul_(norms.q_weight)
        wide[:, norms.heads :].mul_(norms.k_weight)
    half = turn.cos.shape[-1]
    pairs = wide[..., : 2 * half].unflatten(-1, (2, half))
    moved: torch.Tensor = (pairs * turn.cos).addcmul_(pairs.flip(-2), turn.sin).flatten(-2)
    if 2 * half < wide.shape[-1]:
        moved = torch.cat((moved, wide[..., 2 * half :]), dim=-1)
    rounded: torch.Tensor = moved.to(heads.dtype)
    return rounded


def joined(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """q and k as one view [tokens, heads + kv_heads, head_dim] if k's heads lie right behind q's, else None."""
    if q.stride() != k.stride() or q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr():
        return None
    if k.storage_offset() - q.storage_offset() != q.shape[1] * q.stride(1):
        return None
    both: torch.Tensor = q.as_strided((q.shape[0], q.shape[1] + k.shape[1], q.shape[2]), q.stride())
    return both


def rope(q: torch.Tensor, k: torch.Tensor, step: Step, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    turn = angles(step.positions, table)
    both = joined(q, k)
    if both is None:
        return turned(q, turn), turned(k, turn)
    return _split(turned(both, turn), q.shape[1])


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    step: Step,
    table: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    turn = angles(step.positions, table)
    both = joined(q, k)
    if both is None:
        q_norms = Norms(q.shape[1], q_weight, k_weight, eps)
        return turned(q, turn, q_norms), turned(k, turn, q_norms._replace(heads=0))
    return _split(turned(both, turn, Norms(q.shape[1], q_weight, k_weight, eps)), q.shape[1])


def _split(both: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    return both[:, :heads], both[:, heads:]


__all__ = ["Angles", "Norms", "angles", "joined", "qk_norm_rope", "rope", "turned"]
