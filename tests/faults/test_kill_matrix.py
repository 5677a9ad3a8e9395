"""Whatever process is killed at whatever point: no orphan, no port, no lost service, a truthful status.

One process of a point gets SIGKILL; what was seen then is a row of the table that the session ends with.
"""

import dataclasses
import signal

import pytest

from anychip.deploy import services
from support import kill_points as points
from support.kill_outcomes import Outcome, require
from support.kill_table import PROPERTY, Cell
from support.kill_world import SETTLE_S, world_of_its_own

GONE = "nothing runs: platform apply RECIPE starts it"
KEPT = "revision 1 runs"

MATRIX = {
    points.plan_of_the_first: {"command": Outcome(None)},
    points.first_loads: {
        "server": Outcome("failed", code=5),
        "worker": Outcome("failed", code=5),
        "command": Outcome("dead", note=GONE),
    },
    points.first_is_tried: {
        "server": Outcome("failed", code=5),
        "worker": Outcome("failed", code=5),
        "command": Outcome("dead", note=GONE),
    },
    points.plan_of_the_second: {
        "server": Outcome("running", 2, code=0),
        "worker": Outcome("running", 2, code=0),
        "command": Outcome("running", 1),
    },
    points.second_stands_by: {
        "server": Outcome("running", 2, code=0),
        "worker": Outcome("running", 2, code=0),
        "command": Outcome("running", 1, note=KEPT),
        "new server": Outcome("running", 1, code=5),
    },
    points.first_gives_way: {
        "server": Outcome("running", 2, code=0),
        "worker": Outcome("running", 2, code=0),
        "command": Outcome("running", 1, note=KEPT),
        "new server": Outcome("running", 1, code=5),
    },
    points.second_loads: {
        "server": Outcome("running", 1, code=5),
        "worker": Outcome("running", 1, code=5),
        "command": Outcome("running", 1, note=KEPT),
    },
    points.second_is_tried: {
        "server": Outcome("running", 1, code=5),
        "worker": Outcome("running", 1, code=5),
        "command": Outcome("running", 1, note=KEPT),
    },
    points.serves_nobody: {"server": Outcome("dead"), "worker": Outcome("running", 1)},
    points.serves_a_stream_in_the_foreground: {
        "server": Outcome("dead", code=1),
        "worker": Outcome("running", 1),
        "command": Outcome("dead"),
    },
    points.down_of_a_busy_one: {
        "server": Outcome("stopped", code=0),
        "worker": Outcome("stopped", code=0),
        "command": Outcome("stopped"),
    },
    points.down_of_one_that_loads: {
        "server": Outcome("stopped", code=0),
        "worker": Outcome("stopped", code=0),
        "command": Outcome("stopped"),
        "apply": Outcome("stopped", code=0),
    },
}
CELLS = [(point, victim) for point, row in MATRIX.items() for victim in row]


@pytest.fixture
def world(monkeypatch):
    with world_of_its_own(monkeypatch) as found:
        yield found


def seen(world, number, processes):
    """What there is just now, for the table."""
    point, victim = CELLS[number]
    status, command = world.status(), processes.get("command")
    told = "no service" if status is None else f"{status.condition}{': ' if status.detail else ''}{status.detail}"
    return Cell(
        number=number,
        point=point.__name__.replace("_", " "),
        killed=victim,
        orphans=len(world.orphans()),
        port="answers" if world.health() == "ready" else "free" if world.is_port_free() else "held",
        serves=status.revision if status is not None and status.pid else 0,
        code=None if command is None or victim == "command" else command.poll(),
        status=told,
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(len(CELLS)), ids=[f"{p.__name__}-{v.replace(' ', '-')}" for p, v in CELLS])
def test_a_kill_leaves_no_orphan_no_port_and_a_truthful_status(world, number, record_property):
    point, victim = CELLS[number]
    processes = point(world)
    processes[victim].send_signal(signal.SIGKILL)
    world.gates.open_all()
    try:
        if victim == "command":
            processes[victim].wait(SETTLE_S)
        require(world, MATRIX[point][victim], processes, but=processes[victim].pid)
    finally:
        record_property(PROPERTY, dataclasses.asdict(seen(world, number, processes)))
    services.down(world.store, "svc")
    world.wait_commands()
    assert world.processes() == []
