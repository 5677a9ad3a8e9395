"""Write where the threads of the server are when its event loop stands still. Knows a loop, not what it does."""

from __future__ import annotations

import asyncio
import faulthandler
import sys

LOOK_S = 1.0
STALL_S = 20.0


async def tell_stalls(stall_s: float = STALL_S, look_s: float = LOOK_S) -> None:
    """Until cancelled: stacks go to standard error whenever the loop doesn't come by here for so long.

    A thread without Python's lock writes them, so that what keeps the lock is told too.
    """
    try:
        while True:
            faulthandler.dump_traceback_later(stall_s, file=sys.stderr)
            await asyncio.sleep(look_s)
    finally:
        faulthandler.cancel_dump_traceback_later()


__all__ = ["STALL_S", "tell_stalls"]
