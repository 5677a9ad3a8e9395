"""What is known of a worker's numbers without asking it."""

from dataclasses import fields

from anychip.engine.laps import STEP_PARTS
from anychip.engine.stats import Counters, SchedulerStats
from anychip.engine.worker_stats import COUNTS, WorkerStats


def test_every_count_of_the_engine_is_known_as_one():
    counted = {field.name for field in fields(Counters)} | {"pages_evicted"}
    assert counted | {f"{part}_seconds" for part in STEP_PARTS} | {"step_seconds"} == COUNTS
    assert set(SchedulerStats._fields) - COUNTS == {
        *("running", "waiting", "pages_total", "pages_free", "pages_evictable", "pages_protected", "pages_in_flight")
    }


def test_nothing_is_running_before_a_worker_says_so():
    assert WorkerStats().show(5.0) == {"running": 0.0, "waiting": 0.0}


def test_what_was_told_last_is_shown_with_its_age():
    stats = WorkerStats()
    stats.take({"running": 3.0, "steps": 10.0}, 5.0)
    assert stats.show(7.5) == {"running": 3.0, "waiting": 0.0, "steps": 10.0, "stats_age_seconds": 2.5}


def test_of_a_worker_that_ended_only_counts_stay():
    stats = WorkerStats()
    stats.take({"running": 3.0, "pages_free": 4.0, "device_bytes_free": 9.0, "steps": 10.0}, 5.0)
    stats.worker_ended()
    assert stats.show(7.5) == {"running": 0.0, "waiting": 0.0, "steps": 10.0}


def test_counts_never_fall_while_workers_come_and_go():
    stats, seen = WorkerStats(), []
    for steps in (0, 5, 9, None, None, 0, 2, None, 0, 100):
        if steps is None:
            stats.worker_ended()
        else:
            stats.take({"steps": float(steps)}, 0.0)
        seen.append(stats.show(0.0)["steps"])
    assert seen == [0, 5, 9, 9, 9, 9, 11, 11, 11, 111]
