"""How long a worker that died is waited for, and when it is given up."""

from anychip.engine.restarts import Backoff, Restarts


def test_the_wait_doubles_up_to_its_limit():
    restarts = Restarts(Backoff(1, 5, 60), most=5)
    assert [restarts.after(0) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_too_many_in_a_row_are_the_last():
    restarts = Restarts(Backoff(1, 5, 60), most=2)
    assert [restarts.after(59) for _ in range(4)] == [1, 2, None, None]


def test_a_healthy_time_makes_a_new_row():
    restarts = Restarts(Backoff(1, 5, 60), most=2)
    assert [restarts.after(healthy_s) for healthy_s in (0, 0, 60, 0, 0)] == [1, 2, 1, 2, None]


def test_none_at_all_may_be_wanted():
    assert Restarts(Backoff(), most=0).after(1e9) is None
