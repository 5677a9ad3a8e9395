"""Samplers of the imitated kunlun_ops."""

from __future__ import annotations

import pytest
import torch

from anychip_kunlun.stack import Stack

PROBS = torch.tensor([0.1, 0.4, 0.05, 0.25, 0.2])
ROWS = 4000


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def probs() -> torch.Tensor:
    return PROBS.repeat(ROWS, 1)


def shares(ids: torch.Tensor) -> torch.Tensor:
    assert ids.dtype == torch.int32
    return torch.bincount(ids.long(), minlength=len(PROBS)) / ROWS


@pytest.mark.parametrize(
    ("op", "limits", "kept"),
    [
        ("top_k_sampling_from_probs", {"top_k": 2}, [1, 3]),
        ("top_p_sampling_from_probs", {"top_p": 0.7}, [1, 3, 4]),
        ("top_k_top_p_sampling_from_probs", {"top_k": 3, "top_p": 0.5}, [1, 3]),
    ],
)
@pytest.mark.parametrize("as_tensors", [True, False])
def test_draws_keep_the_likeliest_in_proportion(
    host: Stack, op: str, limits, kept: list[int], as_tensors: bool
) -> None:
    if as_tensors:
        dtypes = {"top_k": torch.int32, "top_p": torch.float32}
        limits = {name: torch.full((ROWS,), value, dtype=dtypes[name]) for name, value in limits.items()}
    drawn = shares(getattr(host.load("kunlun_ops"), op)(probs(), **limits, deterministic=True))
    wanted = torch.zeros_like(PROBS)
    wanted[kept] = PROBS[kept] / PROBS[kept].sum()
    assert torch.equal(drawn > 0, wanted > 0)
    assert (drawn - wanted).abs().max() < 0.04


def test_a_top_k_of_one_is_the_likeliest(host: Stack) -> None:
    ids = host.load("kunlun_ops").top_k_sampling_from_probs(probs(), 1)
    assert bool((ids == 1).all())


def test_samplers_refuse_int64_limits_and_half_probabilities(host: Stack) -> None:
    ops = host.load("kunlun_ops")
    with pytest.raises(ValueError, match="top_k is int64, not int32"):
        ops.top_k_sampling_from_probs(probs(), torch.ones(ROWS, dtype=torch.int64))
    with pytest.raises(ValueError, match="probs is bfloat16, not float32"):
        ops.top_p_sampling_from_probs(probs().bfloat16(), 0.5)
