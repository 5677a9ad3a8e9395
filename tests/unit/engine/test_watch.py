"""When a worker counts as hung, by a clock that the test turns."""

import pytest

from anychip.engine.pulse import Reading
from anychip.engine.watch import Signs, Watch
from anychip.recipe.watchdog import WatchdogLimits

LIMITS = WatchdogLimits(floor_s=20, factor=10, load_s=300)


def first_hang(signs, seconds, limits=LIMITS, tick_s=1.0, before=()):
    """The first second at which `signs(second)` count as a hang, and why; None where they never do."""
    watch, now_s = Watch(limits), 1000.0
    for one in before:
        assert watch.look(one, now_s) is None
        now_s += tick_s
    for second in range(seconds):
        why = watch.look(signs(second), now_s + second * tick_s)
        if why is not None:
            return second, why
    return None


def alive(second, turn=0.0, cost_s=0.0):
    return Signs(Reading(beats=second, turn=turn, cost_s=cost_s))


def test_a_worker_that_rests_and_beats_never_hangs():
    assert first_hang(alive, 10_000) is None


def test_a_worker_that_rests_and_is_silent_hangs_after_the_floor():
    assert first_hang(lambda _: alive(7), 60) == (20, "there has been no heartbeat for 20 s")


def test_a_stopped_worker_hangs_after_the_floor_however_long_its_step_may_take():
    second, why = first_hang(lambda _: Signs(Reading(7, 3, cost_s=1000), is_stopped=True), 60)
    assert second == 20
    assert why == "its process has been stopped for 20 s, by a signal or a debugger"


def test_a_worker_that_beats_in_a_step_without_end_hangs_after_the_floor():
    found = first_hang(lambda second: alive(second, turn=3), 60)
    assert found == (20, "a step has been running for 20 s; its limit is 20 s")


def test_a_step_may_take_the_factor_of_what_is_predicted_and_keep_pythons_lock():
    found = first_hang(lambda _: alive(7, turn=3, cost_s=5), 100)
    assert found == (50, "a step has been running for 50 s; its limit is 50 s")


def test_steps_that_follow_one_another_never_hang():
    assert first_hang(lambda second: alive(second, turn=1 + second // 19), 1000) is None


def test_a_load_hangs_without_progress_only():
    assert first_hang(lambda second: Signs(Reading(), loading=f"load {second // 299}/9"), 2000) is None
    second, why = first_hang(lambda second: Signs(Reading(second), loading="load 3/9"), 2000)
    assert second == 300
    assert why == "its load has made no progress for 300 s, at load 3/9; the limit is 300 s"


def test_what_was_silent_while_it_loaded_is_not_blamed_for_it_afterwards():
    loading = [Signs(Reading(7), loading=f"compile {second}") for second in range(200)]
    assert first_hang(alive, 19, before=loading) is None


@pytest.mark.parametrize("signs", [Signs(Reading(7)), Signs(Reading(7, turn=3))])
def test_a_watch_that_did_not_run_itself_blames_nobody(signs):
    watch = Watch(LIMITS)
    assert watch.look(signs, 0.0) is None
    assert watch.look(signs, 3600.0) is None
    assert watch.look(signs, 7200.0) is None
    beating = signs._replace(pulse=signs.pulse._replace(beats=8, turn=signs.pulse.turn and 4))
    assert watch.look(beating, 7201.0) is None


def test_a_worker_that_goes_on_is_not_hung_any_more():
    watch = Watch(LIMITS)
    whys = [watch.look(alive(7), second) for second in range(30)]
    assert whys[-1] is not None
    assert watch.look(alive(8), 30.0) is None


def test_the_limit_of_a_step_is_never_below_the_floor():
    assert [LIMITS.step_s(cost_s) for cost_s in (0.0, 1.0, 2.0, 3.0)] == [20, 20, 20, 30]


def test_workers_are_looked_at_at_least_once_a_second():
    assert WatchdogLimits(floor_s=3600).tick_s == 1.0
    assert WatchdogLimits(floor_s=0.8).tick_s == pytest.approx(0.1)
