"""Commands that are interrupted: what they began is undone, what ran before runs on, and the exit code says it."""

import signal

import pytest

from support import kill_points as points
from support.kill_outcomes import Outcome, require
from support.kill_world import world_of_its_own

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
FAILED, KEPT = Outcome("failed", code=130), Outcome("running", 1, code=130)
STOPPED = Outcome("stopped", code=130)

CELLS = [
    (points.plan_of_the_first, TERM, Outcome(None, code=130)),
    (points.first_loads, INT, FAILED),
    (points.first_is_tried, HUP, FAILED),
    (points.plan_of_the_second, HUP, KEPT),
    (points.second_stands_by, TERM, KEPT),
    (points.first_gives_way, INT, KEPT),
    (points.second_loads, HUP, KEPT),
    (points.second_loads, TERM, KEPT),
    (points.second_is_tried, INT, KEPT),
    (points.serves_a_stream_in_the_foreground, INT, STOPPED),
    (points.serves_a_stream_in_the_foreground, TERM, Outcome("stopped", code=0)),
    (points.serves_a_stream_in_the_foreground, HUP, STOPPED),
    (points.down_of_a_busy_one, INT, STOPPED),
]


@pytest.fixture
def world(monkeypatch):
    with world_of_its_own(monkeypatch) as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("point", "number", "expected"), CELLS, ids=[f"{point.__name__}-{number.name}" for point, number, _ in CELLS]
)
def test_a_signal_undoes_what_was_begun(world, point, number, expected):
    processes = point(world)
    processes["command"].send_signal(number)
    world.gates.open_all()
    require(world, expected, processes)
    assert "Traceback" not in world.said()


def test_two_signals_in_a_row_lose_no_service(world):
    processes = points.second_loads(world)
    for number in (HUP, INT, TERM, INT):
        processes["command"].send_signal(number)
    world.gates.open_all()
    require(world, KEPT, processes)


@pytest.mark.parametrize("point", [points.second_stands_by, points.second_loads])
def test_a_terminal_that_is_closed_while_a_service_is_replaced_loses_no_service(world, point):
    world.uses_terminals = True
    processes = point(world)
    world.terminal.hang_up()
    world.gates.open_all()
    require(world, KEPT, processes)


def test_a_foreground_service_ends_with_its_terminal(world):
    world.uses_terminals = True
    command = world.command("apply", world.first, "--foreground")
    world.terminal.read_until("serves stub")
    world.stream()
    world.terminal.hang_up()
    require(world, STOPPED, {"command": command})


def test_down_cancels_an_apply_that_still_plans_and_both_are_told(world):
    processes = points.plan_of_the_first(world)
    status = world.status()
    assert status.condition == "loading"
    assert f"process {processes['command'].pid} on " in status.detail
    down = world.command("down", "svc")
    require(world, Outcome(None, code=130), processes)
    assert world.ending(down) == 0
    assert "cancelled by platform down" in world.said()
    assert "'svc' stopped; the apply of it that was under way was cancelled" in world.said()


def test_down_cancels_an_apply_that_replaces_a_service_and_ends_that_too(world):
    processes = points.second_loads(world)
    down = world.command("down", "svc")
    require(world, STOPPED, processes)
    assert world.ending(down) == 0
    assert "'svc' stopped; the apply of it that was under way was cancelled" in world.said()
