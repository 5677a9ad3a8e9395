"""A terminal that goes away: what runs stays, and what was begun is undone."""

import sys

from support.machines import until
from support.terminals import Terminal


def test_a_service_outlives_the_terminal_that_it_was_started_on(machine):
    command = [sys.executable, "-m", "anychip", "apply", str(machine.write())]
    terminal = Terminal(["/bin/sh", "-c", '"$@"; read _', "sh", *command], machine.environ)
    terminal.read_until("platform down tiny")
    terminal.hang_up()
    terminal.process.wait(30)
    assert machine.status()["condition"] == "running"
    assert machine.complete().status_code == 200
    machine.run("down")
    until(lambda: not machine.is_listening(), 10)
