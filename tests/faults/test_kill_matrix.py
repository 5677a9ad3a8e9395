"""Whatever process is killed at whatever point: no orphan, no port, no lost service, a truthful status.

Each point is reached by a gate or by a sign that everybody can see, then one process gets SIGKILL. Run alone, the
module prints what came of each cell.
"""

import signal
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from anychip.deploy import services
from support.kill_world import SETTLE_S, World, environment
from support.machines import until


class Outcome(NamedTuple):
    """What has to come of a kill.

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


# Each point brings the world to a moment and returns the processes that there are.


def plan_of_the_first(world):
    world.gates.close("plan")
    command = world.command("apply", world.first)
    world.gates.wait_reached("plan", command)
    return {"command": command}


def first_loads(world):
    world.gates.close("load-1")
    command = world.command("apply", world.first)
    world.gates.wait_reached("load-1", command)
    server = world.server(1)
    return {"command": command, "server": server, "worker": world.worker(server)}


def first_is_tried(world):
    world.gates.close("step-1")
    command = world.command("apply", world.first)
    world.gates.wait_reached("step-1", command)
    server = world.server(1)
    return {"command": command, "server": server, "worker": world.worker(server)}


def plan_of_the_second(world):
    server = world.up()
    world.gates.close("plan")
    command = world.command("apply", world.second)
    world.gates.wait_reached("plan", command)
    return {"command": command, "server": server, "worker": world.worker(server)}


def second_stands_by(world):
    server = world.up()
    world.gates.close("start-2")
    command = world.command("apply", world.second)
    world.gates.wait_reached("start-2", command)
    return {"command": command, "server": server, "worker": world.worker(server), "new server": world.server(2)}


def first_gives_way(world):
    server = world.up()
    worker = world.worker(server)
    world.stream()
    command = world.command("apply", world.second)
    until(world.is_draining, SETTLE_S)
    return {"command": command, "server": server, "worker": worker, "new server": world.server(2)}


def second_loads(world):
    return second_waits_at(world, "load-2")


def second_is_tried(world):
    return second_waits_at(world, "step-2")


def second_waits_at(world, gate):
    world.up()
    world.gates.close(gate)
    command = world.command("apply", world.second)
    world.gates.wait_reached(gate, command)
    server = world.server(2)
    return {"command": command, "server": server, "worker": world.worker(server)}


def serves_nobody(world):
    server = world.up()
    return {"server": server, "worker": world.worker(server)}


def serves_a_stream_in_the_foreground(world):
    command = world.command("apply", world.first, "--foreground")
    world.wait_said("serves stub")
    world.stream()
    server = world.server(1)
    return {"command": command, "server": server, "worker": world.worker(server)}


def down_of_a_busy_one(world):
    server = world.up()
    worker = world.worker(server)
    world.stream()
    command = world.command("down", "svc")
    until(world.is_draining, SETTLE_S)
    return {"command": command, "server": server, "worker": worker}


def down_of_one_that_loads(world):
    found = first_loads(world)
    down = world.command("down", "svc")
    world.wait_said("cancelled by platform down")
    return {"command": down, "server": found["server"], "worker": found["worker"], "apply": found["command"]}


GONE = "nothing runs: platform apply RECIPE starts it"
KEPT = "revision 1 runs"

MATRIX = {
    plan_of_the_first: {"command": Outcome(None)},
    first_loads: {
        "server": Outcome("failed", code=5),
        "worker": Outcome("failed", code=5),
        "command": Outcome("dead", note=GONE),
    },
    first_is_tried: {
        "server": Outcome("failed", code=5),
        "worker": Outcome("failed", code=5),
        "command": Outcome("dead", note=GONE),
    },
    plan_of_the_second: {
        "server": Outcome("running", 2, code=0),
        "worker": Outcome("running", 2, code=0),
        "command": Outcome("running", 1),
    },
    second_stands_by: {
        "server": Outcome("running", 2, code=0),
        "worker": Outcome("running", 2, code=0),
        "command": Outcome("running", 1, note=KEPT),
        "new server": Outcome("running", 1, code=5),
    },
    first_gives_way: {
        "server": Outcome("running", 2, code=0),
        "worker": Outcome("running", 2, code=0),
        "command": Outcome("running", 1, note=KEPT),
        "new server": Outcome("running", 1, code=5),
    },
    second_loads: {
        "server": Outcome("running", 1, code=5),
        "worker": Outcome("running", 1, code=5),
        "command": Outcome("running", 1, note=KEPT),
    },
    second_is_tried: {
        "server": Outcome("running", 1, code=5),
        "worker": Outcome("running", 1, code=5),
        "command": Outcome("running", 1, note=KEPT),
    },
    serves_nobody: {"server": Outcome("dead"), "worker": Outcome("running", 1)},
    serves_a_stream_in_the_foreground: {
        "server": Outcome("stopped", code=1),
        "worker": Outcome("running", 1),
        "command": Outcome("dead"),
    },
    down_of_a_busy_one: {
        "server": Outcome("stopped", code=0),
        "worker": Outcome("stopped", code=0),
        "command": Outcome("stopped"),
    },
    down_of_one_that_loads: {
        "server": Outcome("stopped", code=0),
        "worker": Outcome("stopped", code=0),
        "command": Outcome("failed"),
        "apply": Outcome("stopped", code=0),
    },
}
CELLS = [(point, victim) for point, row in MATRIX.items() for victim in row]


@pytest.fixture
def world(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as name:
        for key, value in environment(Path(name)).items():
            monkeypatch.setenv(key, value)
        found = World(Path(name))
        yield found
        found.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("point", "victim"), CELLS, ids=[f"{p.__name__}-{v.replace(' ', '-')}" for p, v in CELLS])
def test_a_kill_leaves_no_orphan_no_port_and_a_truthful_status(world, point, victim, record_cell):
    expected = MATRIX[point][victim]
    processes = point(world)
    processes[victim].send_signal(signal.SIGKILL)
    world.gates.open_all()
    command = processes.get("command")
    if expected.code is not None:
        assert world.ending(command) == expected.code, world.said()

    def settled():
        status = world.status()
        told = (None, 0) if status is None else (status.condition, status.revision if status.pid else 0)
        if told != (expected.condition, expected.revision) or world.orphans():
            return False
        return not expected.revision or world.is_whole(expected.revision, but=processes[victim].pid)

    until(settled, SETTLE_S)
    status = world.status()
    if expected.revision:
        assert status.pid == world.server(expected.revision).pid
    else:
        until(world.is_port_free, 10)
    assert expected.note in (status.detail if status else "")
    if command is not None and victim == "command":
        command.wait(SETTLE_S)
    assert world.left_files() == []
    record_cell(point.__name__.replace("_", " "), victim, expected, status)
    services.down(world.store, "svc")
    assert world.processes() == []
