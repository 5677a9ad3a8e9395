"""The CPU's pool lies in memory that the system has handed out already."""

import mmap
from pathlib import Path

import torch

from anychip_cpu import pool
from anychip_cpu.device import CpuDevice
from anychip_sdk.kv import PoolSpec
from anychip_sdk.state import StateGroup, StateSpec, StateTensor

MIB = 1 << 20
KV = StateSpec("kv", "paged", (StateTensor("k", (4, 32)), StateTensor("v", (4, 32))))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def grown_by_a_pool_of_64_mib():
    spec = PoolSpec((StateGroup(KV, 4),), torch.float32, 64 * MIB, page_size=16)
    before = resident_bytes()
    made = pool.create(spec, CpuDevice())
    grown = resident_bytes() - before
    made.close()
    return grown


def test_a_pools_memory_is_there_before_it_is_used():
    assert grown_by_a_pool_of_64_mib() > 60 * MIB


def test_a_pool_too_large_to_fetch_at_load_is_fetched_as_it_is_used(monkeypatch):
    monkeypatch.setattr(pool, "TOUCHED_BYTES", 63 * MIB)
    assert grown_by_a_pool_of_64_mib() < 32 * MIB
