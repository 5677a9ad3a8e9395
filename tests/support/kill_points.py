"""The moments of apply, replace, serve and down at which something is done to a process. Knows no expectation.

Each point brings a world to its moment, by gates or by signs that everybody can see, and returns the processes that
there are then, by what they are: command (which is at work), server, worker, and others.
"""

from support.kill_world import SETTLE_S
from support.waiting import until


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
    world.gates.close("undo")
    down = world.command("down", "svc")
    world.gates.wait_reached("undo", found["command"])
    return {"command": down, "server": found["server"], "worker": found["worker"], "apply": found["command"]}
