"""Rotary embeddings of the imitated kunlun_ops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anychip_kunlun.stack import Stack
from anychip_sdk import ops as catalogue
from anychip_sdk.step import Step
from anychip_sdk.testing import chunk_step

TOKENS, HEADS, KV_HEADS, DIM, POSITIONS = 7, 4, 2, 32, 64


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def table(dtype: torch.dtype = torch.bfloat16, size: int = DIM) -> torch.Tensor:
    angles = torch.arange(POSITIONS)[:, None] / 10.0 ** (torch.arange(size // 2) / size)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def step() -> Step:
    """Tokens at these positions."""
    return replace(chunk_step([0] * TOKENS, 0, TOKENS, [0], TOKENS), positions=positions())


def positions() -> torch.Tensor:
    return torch.tensor([0, 5, 1, 63, 30, 2, 2])


@pytest.mark.parametrize("size", [DIM, DIM // 2])
def test_rotary_embedding_turns_in_place_as_the_catalogue_does(host: Stack, size: int) -> None:
    q, k = random(TOKENS, HEADS * DIM), random(TOKENS, KV_HEADS * DIM, seed=1)
    wanted = catalogue.rope.reference(
        q.view(TOKENS, HEADS, DIM).clone(), k.view(TOKENS, KV_HEADS, DIM).clone(), step(), table(size=size).float()
    )
    host.load("kunlun_ops").rotary_embedding(positions(), q, k, DIM, table(size=size), True)
    torch.testing.assert_close(q.view(TOKENS, HEADS, DIM), wanted[0])
    torch.testing.assert_close(k.view(TOKENS, KV_HEADS, DIM), wanted[1])


def test_rotary_embedding_turns_neighbours_without_neox(host: Stack) -> None:
    q, k = random(1, DIM, dtype=torch.float32), random(1, DIM, seed=1, dtype=torch.float32)
    at, given = torch.tensor([3]), q.clone()
    cos, sin = table(torch.float32)[3].chunk(2)
    host.load("kunlun_ops").rotary_embedding(at, q, k, DIM, table(torch.float32), False)
    assert q[0, 0].item() == pytest.approx((given[0, 0] * cos[0] - given[0, 1] * sin[0]).item(), abs=1e-6)
    assert q[0, 1].item() == pytest.approx((given[0, 1] * cos[0] + given[0, 0] * sin[0]).item(), abs=1e-6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"positions": positions().int()}, "positions is int32, not int64"),
        ({"cos_sin_cache": table(torch.float32)}, "cos_sin_cache is float32, not bfloat16"),
        ({"query": random(TOKENS, 2 * HEADS * DIM)[:, : HEADS * DIM]}, "query is not contiguous"),
        ({"positions": positions()[:3]}, "query and positions differ in length"),
        ({"head_size": 24}, "the cos/sin cache is"),
    ],
)
def test_rotary_embedding_refuses(host: Stack, change: dict[str, object], why: str) -> None:
    given = {
        "positions": positions(),
        "query": random(TOKENS, HEADS * DIM),
        "key": random(TOKENS, KV_HEADS * DIM),
        "head_size": DIM,
        "cos_sin_cache": table(),
        "is_neox": True,
    }
    with pytest.raises(ValueError, match=f"rotary_embedding failed .{why}"):
        host.load("kunlun_ops").rotary_embedding(**{**given, **change})


def test_a_position_behind_the_table_breaks_the_card(host: Stack) -> None:
    q, k = random(1, DIM), random(1, DIM)
    host.load("kunlun_ops").rotary_embedding(torch.tensor([POSITIONS]), q, k, DIM, table(), True)
    with pytest.raises(RuntimeError, match=r"700.*rotary_embedding"):
        host.accelerator.synchronize()


def split(host: Stack, qkv: torch.Tensor, **change: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (torch.empty(TOKENS, heads * DIM, dtype=qkv.dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
    given = {
        "rotary_pos_embedding": table(qkv.dtype),
        "q_norm_weight": random(DIM, seed=2, dtype=qkv.dtype),
        "k_norm_weight": random(DIM, seed=3, dtype=qkv.dtype),
        "positions": positions(),
        "num_tokens": TOKENS,
        "max_seqlen": POSITIONS,
        "head_num": HEADS,
        "kv_head_num": KV_HEADS,
        "head_dim": DIM,
        "rotary_dim": DIM,
    }
    host.load("kunlun_ops").split_norm_rope_neox(q, k, v, qkv, **{**given, **change})
    return q, k, v


def test_the_split_kernel_splits_norms_and_turns(host: Stack) -> None:
    qkv = random(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, dtype=torch.float32)
    q, k, v = split(host, qkv)
    first, second, third = qkv.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
    wanted = catalogue.qk_norm_rope.reference(
        first.view(TOKENS, HEADS, DIM),
        second.view(TOKENS, KV_HEADS, DIM),
        random(DIM, seed=2, dtype=torch.float32),
        random(DIM, seed=3, dtype=torch.float32),
        1e-6,
        step(),
        table(torch.float32),
    )
    torch.testing.assert_close(q, wanted[0].flatten(1))
    torch.testing.assert_close(k, wanted[1].flatten(1))
    assert torch.equal(v, third)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_tokens": TOKENS + 1}, "qkv is"),
        ({"head_dim": 48}, "head size 48"),
        ({"max_seqlen": 32}, "rotary_pos_embedding is"),
        ({"q_norm_weight": torch.ones(DIM)}, "q_norm_weight is float32"),
        ({"emb_batch_size": 2}, "emb_batch_size"),
    ],
)
def test_the_split_kernel_refuses(host: Stack, change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"split_norm_rope_neox failed .{why}"):
        split(host, random(TOKENS, (HEADS + 2 * KV_HEADS) * DIM), **change)
