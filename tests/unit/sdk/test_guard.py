"""Whatever a plugin's code raises is the plugin's fault, and a user's Ctrl-C stays the user's."""

import os
import signal
import threading
import warnings

import pytest

from anychip_sdk.errors import BackendBroken, MemoryInsufficient
from anychip_sdk.guard import MOST_CHARS, blaming, described, shown, within


class Panic(BaseException):
    """As libraries in other languages raise it."""


class Mute(Exception):
    def __str__(self):
        raise Panic

    __repr__ = __str__


@pytest.mark.parametrize(
    "kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Panic, Mute, MemoryError, StopIteration]
)
def test_whatever_is_raised_becomes_the_fault(kind):
    with pytest.raises(BackendBroken, match=f"probe: {kind.__name__}") as caught, blaming(broken):
        raise kind("x")
    assert isinstance(caught.value.__cause__, kind)


def broken(what):
    return BackendBroken(f"probe: {what}")


def test_what_the_contract_lets_hooks_raise_passes_unless_nothing_may():
    with pytest.raises(MemoryInsufficient, match="none left"), blaming(broken):
        raise MemoryInsufficient("none left")
    with pytest.raises(BackendBroken, match="MemoryInsufficient: none left"), blaming(broken, passes=()):
        raise MemoryInsufficient("none left")


@pytest.mark.parametrize("swallowed", [True, False])
def test_an_interrupt_by_a_signal_is_the_user_s_even_if_the_plugin_swallows_it(swallowed):
    with pytest.raises(KeyboardInterrupt), blaming(broken):
        interrupted(swallowed)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupted(swallowed):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        if not swallowed:
            raise


def test_a_handler_that_the_plugin_installs_ends_with_the_hook():
    with blaming(broken):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_takes_too_long_is_left_behind():
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        within(0.05, lambda: release.wait(60))
    release.set()


def test_an_answer_or_an_error_comes_out_of_the_thread():
    assert within(60, lambda: 5) == 5
    with pytest.raises(Panic):
        within(60, explode)


def explode():
    raise Panic


def test_texts_are_short_and_never_raise():
    assert described(ValueError("x" * 10**6)) == f"ValueError: {'x' * MOST_CHARS}"[:MOST_CHARS]
    assert described(Mute()) == "Mute: (its text can't be read)"
    assert shown(Mute()) == "a Mute that can't be shown"
    assert len(shown(list(range(10**6)))) < MOST_CHARS + 10


def test_a_coroutine_is_shown_without_a_warning():
    async def probe():
        return ()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "coroutine" in shown(probe())
