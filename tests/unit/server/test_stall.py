"""A loop that stands still says where."""

import subprocess
import sys

from support.processes import child_env

CODE = """
import asyncio, ctypes, sys
from anychip.server.stall import tell_stalls

def stands_still():
    ctypes.PyDLL(None).usleep(700_000)

async def main():
    task = asyncio.create_task(tell_stalls(0.3, 0.05))
    await asyncio.sleep(float(sys.argv[1]))
    if sys.argv[2] == "stall":
        stands_still()
    task.cancel()

asyncio.run(main())
"""


def said(*arguments):
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, env=child_env(), capture_output=True, text=True, timeout=60, check=True)
    return done.stderr


def test_a_loop_that_stands_still_writes_where_though_pythons_lock_is_kept():
    assert "in stands_still" in said("0.1", "stall")


def test_a_loop_that_ends_leaves_no_alarm_behind():
    assert said("0.1", "go on") == ""
