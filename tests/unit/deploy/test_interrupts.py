"""Signals become exceptions where something has to be undone, and nothing while it is undone."""

import os
import signal

import pytest

from anychip.deploy.interrupts import NUMBERS, Interrupted, interruptible, undisturbed


@pytest.mark.parametrize("number", NUMBERS)
def test_each_signal_that_ends_a_command_is_raised_and_named(number):
    with pytest.raises(Interrupted) as caught, interruptible():
        os.kill(os.getpid(), number)
    assert caught.value.number == number
    assert isinstance(caught.value, KeyboardInterrupt)


def test_a_cancellation_names_the_other_command():
    assert str(Interrupted(signal.SIGUSR1)) == "cancelled by platform down"
    assert str(Interrupted(signal.SIGHUP)) == "interrupted by SIGHUP"


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in NUMBERS]
    with interruptible(), undisturbed():
        pass
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nothing_disturbs_an_undoing():
    with interruptible():
        with undisturbed():
            for number in NUMBERS:
                os.kill(os.getpid(), number)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
