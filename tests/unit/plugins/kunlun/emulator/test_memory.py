"""The memory of a virtual card."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from anychip_kunlun.emulator import Profile, close_stack, open_stack
from anychip_kunlun.stack import Stack

MIB = 1 << 20


def allocated(stack: Stack) -> int:
    return int(stack.accelerator.memory_allocated(0))


def empty(stack: Stack, nbytes: int) -> torch.Tensor:
    return stack.empty((nbytes,), torch.uint8, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_new_memory_holds_nan(host: Stack, dtype: torch.dtype) -> None:
    assert bool(host.empty((3, 5), dtype, 0).isnan().all())


def test_memory_is_counted_in_granules_until_the_last_view_is_gone(host: Stack) -> None:
    one = empty(host, 700)
    assert allocated(host) == 1024
    view = one[10:20]
    del one
    assert allocated(host) == 1024
    del view
    assert allocated(host) == 0


def test_freed_memory_stays_reserved_until_the_cache_is_emptied(host: Stack) -> None:
    free, total = host.accelerator.mem_get_info(0)
    assert free == total == 64 * MIB
    one = empty(host, 1000)
    del one
    assert host.accelerator.memory_reserved(0) == 2 * MIB
    assert host.accelerator.mem_get_info(0) == (62 * MIB, 64 * MIB)
    host.accelerator.empty_cache()
    assert host.accelerator.mem_get_info(0) == (64 * MIB, 64 * MIB)


def test_memory_in_reserve_needs_no_allocation_of_the_driver(host: Stack) -> None:
    first = empty(host, 3 * MIB)
    before = host.accelerator.memory_stats(0)["num_device_alloc"]
    del first
    second = empty(host, 3 * MIB)
    assert host.accelerator.memory_stats(0)["num_device_alloc"] == before
    assert second.numel() == 3 * MIB


def test_freed_memory_is_poisoned_before_it_is_handed_out_again(host: Stack) -> None:
    first = empty(host, 512)
    first.zero_()
    address = first.data_ptr()
    del first
    second = empty(host, 512)
    assert second.data_ptr() == address
    assert bool((second == 0xFF).all())


def test_live_tensors_share_no_byte(host: Stack) -> None:
    generator = torch.Generator().manual_seed(1)
    live: list[tuple[torch.Tensor, int]] = []
    for turn in range(200):
        size = int(torch.randint(1, 200_000, (1,), generator=generator))
        live.append((empty(host, size).fill_(turn % 251), turn % 251))
        if len(live) > 20:
            del live[int(torch.randint(0, len(live), (1,), generator=generator))]
    assert all(bool((tensor == value).all()) for tensor, value in live)


def test_what_does_not_fit_is_torchs_error_with_the_runtimes_code(host: Stack) -> None:
    with pytest.raises(host.accelerator.OutOfMemoryError, match=r"CUDA out of memory.*705.*Tried to allocate 73400320"):
        empty(host, 70 * MIB)
    assert host.accelerator.memory_stats(0)["num_ooms"] == 1
    assert empty(host, 60 * MIB).numel() == 60 * MIB


def test_out_of_memory_gives_the_cache_back_first(host: Stack) -> None:
    parts = [empty(host, 15 * MIB) for _ in range(4)]
    parts.clear()
    assert empty(host, 60 * MIB).numel() == 60 * MIB


def fill_and_release(stack: Stack) -> None:
    parts = [empty(stack, 14 * MIB) for _ in range(4)]
    parts.clear()
    stack.accelerator.empty_cache()


def test_a_fragmenting_card_refuses_what_it_has_in_total(open_host) -> None:
    whole, broken = open_host(), open_host(is_fragmenting=True)
    for stack in (whole, broken):
        fill_and_release(stack)
        assert stack.accelerator.mem_get_info(0)[0] == 64 * MIB
    assert empty(whole, 40 * MIB).numel() == 40 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        empty(broken, 40 * MIB)


def test_a_pool_that_is_taken_first_survives_fragmentation(open_host) -> None:
    stack = open_host(is_fragmenting=True)
    pool = empty(stack, 40 * MIB)
    fill = [empty(stack, 4 * MIB) for _ in range(4)]
    assert pool.numel() + sum(map(torch.Tensor.numel, fill)) == 56 * MIB


def test_memory_can_be_taken_by_address(host: Stack) -> None:
    address = host.accelerator.caching_allocator_alloc(1000, 0)
    assert address % 512 == 0
    assert allocated(host) == 1024
    host.accelerator.caching_allocator_delete(address)
    assert allocated(host) == 0
    with pytest.raises(KeyError):
        host.accelerator.caching_allocator_delete(address)


def test_emptying_the_cache_gives_the_hosts_memory_back_at_once(host: Stack) -> None:
    import weakref

    held = empty(host, 20 * MIB)
    segment = weakref.ref(host.accelerator.emulator.cards[0].allocator._segments[0])
    del held
    host.accelerator.empty_cache()
    assert segment() is None


def test_cards_count_their_own_memory(open_host) -> None:
    stack = open_host(cards=2)
    one = stack.empty((MIB,), torch.uint8, 1)
    assert stack.accelerator.memory_allocated(0) == 0
    assert stack.accelerator.memory_allocated(1) == one.numel()


HOLD = """
import sys, torch
from anychip_kunlun.emulator import Profile, open_stack
stack = open_stack(Profile.parse(sys.argv[1]))
held = stack.empty((32 << 20,), torch.uint8, 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_processes_see_what_others_hold_and_get_it_back_when_they_are_killed(tmp_path) -> None:
    settings = f"memory=64MiB,host={tmp_path / 'host'}"
    stack = open_stack(Profile.parse(settings))
    command = [sys.executable, "-c", HOLD, settings]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert stack.accelerator.mem_get_info(0)[0] == 32 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            empty(stack, 40 * MIB)
        other.kill()
    assert stack.accelerator.mem_get_info(0)[0] == 64 * MIB
    close_stack(stack)
    assert not os.path.exists(stack.root)
