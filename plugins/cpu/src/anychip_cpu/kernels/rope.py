"""Rotary embedding of queries and keys in one pass where they lie side by side. Knows the half-split pairs only."""

from __future__ import annotations

from typing import NamedTuple

import torch

from anychip_cpu.kernels.norm import scaled

SIGNS = torch.tensor([[-1.0], [1.0]])


class Angles(NamedTuple):
    """Per token, for both halves of a head: [tokens, 1, 1, half] and [tokens, 1, 2, half], the sines signed."""

    cos: torch.Tensor
    sin: torch.Tensor


def angles(positions: torch.Tensor, table: torch.Tensor) -> Angles:
    rows = table.index_select(0, positions)[:, None, None, :]
    half = rows.shape[-1] // 2
    return Angles(rows[..., :half], rows[..., half:] * SIGNS)


def rotated(wide: torch.Tensor, turn: Angles, dtype: torch.dtype) -> torch.Tensor:
    """float32 heads [tokens, heads, head_dim] turned by the angles and rounded; `wide` is not changed."""
    half = turn.cos.shape[-1]
    pairs = wide[..., : 2 * half].unflatten(-1, (2, half))
    turned: torch.Tensor = (pairs * turn.cos).addcmul_(pairs.flip(-2), turn.sin).flatten(-2)
    if 2 * half < wide.shape[-1]:
        turned = torch.cat((turned, wide[..., 2 * half :]), dim=-1)
    rounded: torch.Tensor = turned.to(dtype)
    return rounded


def joined(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """q and k as one view [tokens, heads + kv_heads, head_dim] if k's heads lie right behind q's, else None."""
    if q.stride() != k.stride() or q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr():
        return None
    if k.storage_offset() - q.storage_offset() != q.shape[1] * q.stride(1):
        return None
    both: torch.Tensor = q.as_strided((q.shape[0], q.shape[1] + k.shape[1], q.shape[2]), q.stride())
    return both


def rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    turn = angles(positions, table)
    both = joined(q, k)
    if both is None:
        return rotated(q.float(), turn, q.dtype), rotated(k.float(), turn, k.dtype)
    return _split(rotated(both.float(), turn, q.dtype), q.shape[1])


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    table: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    turn = angles(positions, table)
    both = joined(q, k)
    if both is None:
        q_wide, k_wide = scaled(q, eps).mul_(q_weight), scaled(k, eps).mul_(k_weight)
        return rotated(q_wide, turn, q.dtype), rotated(k_wide, turn, k.dtype)
    return _split(norm_rotated(both, q.shape[1], q_weight, k_weight, eps, turn), q.shape[1])


def norm_rotated(
    both: torch.Tensor, heads: int, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float, turn: Angles
) -> torch.Tensor:
    """Query and key heads of one tensor, normalised and turned; the first `heads` are the queries."""
    wide = scaled(both, eps)
    wide[:, :heads].mul_(q_weight)
    wide[:, heads:].mul_(k_weight)
    return rotated(wide, turn, both.dtype)


def _split(both: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    return both[:, :heads], both[:, heads:]


__all__ = ["Angles", "angles", "joined", "norm_rotated", "qk_norm_rope", "rope", "rotated"]
