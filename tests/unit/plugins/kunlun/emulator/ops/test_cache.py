"""Writes into the imitated paged cache."""

from __future__ import annotations

import pytest
import torch

from anychip_kunlun.stack import Stack

TOKENS, HEADS, DIM, BLOCKS, BLOCK_SIZE = 5, 2, 32, 3, 16
SLOTS = [0, 17, -1, 47, 15]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def given(**change: object) -> dict[str, object]:
    return {
        "key": random(TOKENS, HEADS, DIM),
        "value": random(TOKENS, HEADS, DIM, seed=1),
        "k_cache": torch.zeros(BLOCKS, HEADS, BLOCK_SIZE, DIM, dtype=torch.bfloat16),
        "v_cache": torch.zeros(BLOCKS, HEADS, BLOCK_SIZE, DIM, dtype=torch.bfloat16),
        "slot_mapping": torch.tensor(SLOTS, dtype=torch.int32),
        **change,
    }


def test_a_slot_is_a_place_behind_the_head(host: Stack) -> None:
    arguments = given()
    assert host.load("kunlun_ops").reshape_and_cache_flash(**arguments) == 0
    wanted = torch.zeros_like(arguments["k_cache"])
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            for head in range(HEADS):
                wanted[slot // BLOCK_SIZE, head, slot % BLOCK_SIZE] = arguments["key"][token, head]
    assert torch.equal(arguments["k_cache"], wanted)


def test_the_other_layout_has_the_token_first(host: Stack) -> None:
    shape = (BLOCKS, BLOCK_SIZE, HEADS, DIM)
    caches = {name: torch.zeros(shape, dtype=torch.bfloat16) for name in ("k_cache", "v_cache")}
    arguments = given(**caches, BLHD_LAYOUT=True)
    host.load("kunlun_ops").reshape_and_cache_flash(**arguments)
    assert torch.equal(caches["v_cache"][1, 1], arguments["value"][1])


@pytest.mark.parametrize("quant_mode", [0, 1])
def test_int8_is_stored_by_the_absmax_of_each_head_or_channel(host: Stack, quant_mode: int) -> None:
    caches = {name: torch.zeros(BLOCKS, HEADS, BLOCK_SIZE, DIM, dtype=torch.int8) for name in ("k_cache", "v_cache")}
    arguments = given(**caches)
    over = 0 if quant_mode else (0, 2)
    k_max, v_max = (arguments[name].float().abs().amax(dim=over).flatten() for name in ("key", "value"))
    host.load("kunlun_ops").reshape_and_cache(**arguments, k_max=k_max, v_max=v_max, quant_mode=quant_mode)
    steps = k_max.view(HEADS, -1) / 127
    back = caches["k_cache"][0, :, 0].float() * steps
    assert bool(((back - arguments["key"][0].float()).abs() <= steps / 2 + 1e-6).all())


def test_int8_needs_both_maxima(host: Stack) -> None:
    with pytest.raises(ValueError, match="k_max and v_max come together"):
        host.load("kunlun_ops").reshape_and_cache(**given(), k_max=torch.ones(HEADS))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"slot_mapping": torch.tensor(SLOTS)}, "slot_mapping is int64, not int32"),
        ({"key": random(HEADS, TOKENS, DIM).transpose(0, 1)}, "key is not contiguous"),
        ({"k_cache": torch.zeros(BLOCKS, BLOCK_SIZE, HEADS, DIM).bfloat16()}, "v_cache is"),
        ({"value": random(TOKENS, HEADS, DIM).half()}, "value is float16"),
        ({"k_cache": torch.zeros(BLOCKS, HEADS, BLOCK_SIZE, DIM)}, "k_cache is float32"),
        ({"slot_mapping": torch.tensor(SLOTS[:3], dtype=torch.int32)}, "slot_mapping is"),
    ],
)
def test_a_write_refuses(host: Stack, change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"reshape_and_cache_flash failed .{why}"):
        host.load("kunlun_ops").reshape_and_cache_flash(**given(**change))


def test_a_slot_behind_the_cache_breaks_the_card(host: Stack) -> None:
    slots = torch.tensor([0, 1, 2, 3, BLOCKS * BLOCK_SIZE], dtype=torch.int32)
    host.load("kunlun_ops").reshape_and_cache_flash(**given(slot_mapping=slots))
    with pytest.raises(RuntimeError, match="700"):
        host.accelerator.synchronize()
