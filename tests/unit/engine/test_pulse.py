"""What the worker writes is what the server reads, without a message."""

import os
import subprocess
import sys
import threading

import pytest

from anychip.engine.pulse import NUMBERS, Pulse, Reading, read_pulse, shared_memory
from support.processes import child_env, wait_until


@pytest.fixture
def descriptor():
    found = shared_memory("test", NUMBERS.size)
    yield found
    os.close(found)


def test_nothing_written_reads_as_a_worker_that_rests(descriptor):
    assert read_pulse(descriptor) == Reading(0, 0, 0)


def test_turns_count_up_across_rests(descriptor):
    pulse = Pulse(descriptor)
    pulse.turn()
    pulse.expect(2.5)
    assert read_pulse(descriptor) == Reading(0, 1, 2.5)
    pulse.rest()
    assert read_pulse(descriptor).turn == 0
    pulse.turn()
    assert read_pulse(descriptor).turn == 2


def test_another_process_writes_what_is_read_here(descriptor):
    code = f"from anychip.engine.pulse import Pulse; pulse = Pulse({descriptor}); pulse.beat(); pulse.beat()"
    subprocess.run([sys.executable, "-c", code], pass_fds=[descriptor], env=child_env(), check=True, timeout=60)
    assert read_pulse(descriptor).beats == 2


def test_a_thread_of_its_own_beats(descriptor):
    threads = threading.active_count()
    Pulse(descriptor).beat_on(0.001)
    wait_until(lambda: read_pulse(descriptor).beats > 3, what="beats")
    assert threading.active_count() == threads + 1


def test_a_pulse_that_nobody_reads_is_no_error():
    Pulse().turn()
