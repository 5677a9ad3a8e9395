"""What has to come of something that was done to a process, and what did. Knows no point."""

from typing import NamedTuple

from support.kill_world import SETTLE_S
from support.waiting import until


class Outcome(NamedTuple):
    """What has to come of it.

    Attributes:
        condition: of the service then, as status tells it; None: there is none.
        revision: the one that runs; 0: none.
        code: the command's exit code; None: it was killed itself, or there is none.
        note: what status says besides.
    """

    condition: str | None
    revision: int = 0
    code: int | None = None
    note: str = ""


def require(world, expected, processes, but=None):
    """Wait for the outcome, which has to last: no orphan, no port, no file, a truthful status.

    Args:
        processes: those of the point.
        but: the pid of a process that was killed and must have been replaced.
    """
    if expected.code is not None:
        assert world.ending(processes["command"]) == expected.code, world.said()

    def settled():
        status = world.status()
        told = (None, 0) if status is None else (status.condition, status.revision if status.pid else 0)
        if told != (expected.condition, expected.revision) or world.orphans():
            return False
        return not expected.revision or world.is_whole(expected.revision, but)

    until(settled, SETTLE_S)
    status = world.status()
    if expected.revision:
        assert status.pid == world.server(expected.revision).pid
    else:
        until(world.is_port_free, 10)
    assert expected.note in (status.detail if status else "")
    assert world.left_files() == []
