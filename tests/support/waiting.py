"""Wait for what other processes do. Imports nothing heavy, as processes of tests start by it."""

import threading
import time

START_S = 120  #: what a start may take on a busy machine


def until(condition, limit_s=START_S):
    """Return once the condition holds; fail where it doesn't in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.05)
