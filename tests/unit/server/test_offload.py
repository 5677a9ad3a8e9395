"""Long work leaves the event loop, and what it took goes back to the system."""

import asyncio
import subprocess
import sys
import threading

import pytest

from anychip.server.offload import INLINE_SIZE, Offload
from support.processes import child_env

LARGE_FREED = """
import threading
from pathlib import Path
import psutil
from anychip.server.offload import keep_no_large_blocks

def used():
    return psutil.Process().memory_info().rss

def work(barrier):
    blocks = [bytearray(b"x" * size) for size in (400_000, 3_000_000, 20_000_000) for _ in range(4)]
    barrier.wait()

keep_no_large_blocks()
before = used()
for _ in range(3):
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=work, args=(barrier,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(used() - before)
"""


def test_small_work_is_done_at_once_and_the_rest_in_a_thread():
    async def main():
        found = Offload()
        here = await found.run(INLINE_SIZE, threading.current_thread)
        return here, await found.run(INLINE_SIZE + 1, threading.current_thread)

    here, there = asyncio.run(main())
    assert here is threading.main_thread()
    assert there is not here


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' allocators have no such options")
def test_large_blocks_of_any_thread_go_back_to_the_system():
    command = [sys.executable, "-c", LARGE_FREED]
    grown = int(subprocess.run(command, env=child_env(), capture_output=True, text=True, check=True, timeout=60).stdout)
    assert grown < 10_000_000
