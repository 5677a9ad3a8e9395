"""Writing keys and values to the paged cache. Knows the dimensions of the cache, not its strides."""

from __future__ import annotations

import dataclasses

import torch

from anychip_sdk.ops.attention import GROUP, K_CACHE, STEP_ARG, V_CACHE
from anychip_sdk.ops.base import EXACT, Arg, op
from anychip_sdk.ops.cases import Args, Case
from anychip_sdk.ops.checks import Checks, plant_in_moved
from anychip_sdk.step import Step

K_WRITTEN = dataclasses.replace(K_CACHE, mutated=True)
V_WRITTEN = dataclasses.replace(V_CACHE, mutated=True)


def _case(case: Case) -> Args:
    return *case.heads(case["tokens"])[1:], *case.caches(), case.written(), 0


@op(
    Arg("k", ("tokens", "kv_heads", "head_dim")),
    Arg("v", ("tokens", "kv_heads", "head_dim"), doc="may be a strided view"),
    K_WRITTEN,
    V_WRITTEN,
    STEP_ARG,
    GROUP,
    returns=(K_CACHE, V_CACHE),
    error=EXACT,
    checks=Checks(_case, plant_in_moved),
)
def kv_write(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, step: Step, group: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put each token's key and value into its slot; returns the caches, so that a reader depends on the write."""
    page_size, slots = k_cache.shape[1], step.paged(group).slots
    at = (slots // page_size, slots % page_size)  # a pool's memory may be in another order: nothing is flattened
    k_cache[at] = k.to(k_cache.dtype)
    v_cache[at] = v.to(v_cache.dtype)
    return k_cache, v_cache


__all__ = ["K_WRITTEN", "V_WRITTEN", "kv_write"]
