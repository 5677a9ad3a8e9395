"""What the queue refuses: a request waits only where it has no place, and no more wait than the recipe lets."""

import pytest

from anychip_sdk.errors import QueueFull
from support.schedules import Bench, config


def test_a_full_queue_says_its_limit() -> None:
    bench = Bench(config(max_running_requests=1, max_queued_requests=2), 100)
    for name in ("runs", "a", "b"):
        bench.add(name, [1])
    with pytest.raises(QueueFull, match=r"all 1 places are taken .* 2 requests wait already, the limit is 2"):
        bench.add("c", [1])
    bench.abort("a")
    bench.add("c", [1])


@pytest.mark.parametrize("limit", [0, 1])
def test_what_has_a_place_does_not_wait(limit: int) -> None:
    bench = Bench(config(max_running_requests=4, max_queued_requests=limit), 100)
    bench.add("a", [1], n=2)
    bench.add("b", [1])
    bench.step()
    bench.add("c", [1])
    for name in range(limit):
        bench.add(f"waits {name}", [1])
    with pytest.raises(QueueFull, match=f"the limit is {limit}"):
        bench.add("d", [1])
    bench.abort("a")
    bench.add("d", [1])
    bench.drain()
    bench.add("e", [1], n=4)


def test_a_wide_request_waits_where_it_does_not_fit_beside_those_that_run() -> None:
    bench = Bench(config(max_running_requests=4, max_queued_requests=0), 100)
    bench.add("a", [1])
    with pytest.raises(QueueFull):
        bench.add("b", [1], n=4)
    bench.add("c", [1], n=3)
