"""Scheduler, tree and pool under everything at once, compared with a pure function.

Arrivals with shared prefixes, forks, aborts at any moment, tiny pools. After each step the invariants hold; in the end
every output is right and every page and slot free. With slots, the model keeps a state per sequence; with overlap, a
step is scheduled while the one before it runs, and runs as late as can be.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anychip.engine.request import namespace_of
from anychip_sdk.errors import QueueFull, RequestInvalid
from support.schedules import Bench, config

PREFIXES = ([], [1], [1, 2, 1, 2, 1], [1, 2, 1, 2, 1, 1, 1, 2] * 2, [4] * 17)
NAMESPACES = ("", "", "", "", namespace_of(salt="x"), namespace_of(adapter="x"))


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, Any]:
    max_tokens = draw(st.sampled_from([None, 1, 2, 5, 17, 30]))
    return {
        "seed": draw(st.integers(0, 3)),
        "n": draw(st.sampled_from([1, 1, 2, 3])),
        "max_tokens": max_tokens,
        "min_tokens": 0 if max_tokens is None else draw(st.integers(0, max_tokens)),
        "ignore_eos": draw(st.booleans()),
        "stop_token_ids": draw(st.sampled_from([(), (8,), (8, 9)])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.0, 0.0, 1.0])),
    }


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        chunk=st.sampled_from([1, 3, 7, 64]),
        page_size=st.sampled_from([1, 3, 16]),
        pool_slots=st.integers(20, 90),
        context=st.sampled_from([25, 40, 1000]),
        rows=st.sampled_from([3, 4, 8]),
        policy=st.sampled_from(["lpm", "fcfs"]),
        prefix_cache=st.booleans(),
        shared=st.sampled_from([1, 4, 32]),
        hopeful=st.booleans(),
        slots=st.sampled_from([0, 0, 3, 4, 9]),
        overlap=st.booleans(),
    )
    def start(
        self,
        chunk: int,
        page_size: int,
        pool_slots: int,
        context: int,
        rows: int,
        policy: str,
        prefix_cache: bool,
        shared: int,
        hopeful: bool,
        slots: int,
        overlap: bool,
    ) -> None:
        self.bench = Bench(
            config(
                chunked_prefill_size=chunk,
                page_size=page_size,
                context_length=context,
                max_running_requests=rows,
                max_queued_requests=6,
                policy=policy,
                prefix_cache=prefix_cache,
                shared_prefix_tokens=shared,
                overlap=overlap,
            ),
            pages=-(-pool_slots // page_size),
            slots=slots,
        )
        if hopeful:
            self.bench.be_hopeful()
        self.count = 0

    @rule(
        prefix=st.sampled_from(PREFIXES),
        rest=st.lists(st.integers(0, 2), min_size=0, max_size=9),
        namespace=st.sampled_from(NAMESPACES),
        params=parameters(),
    )
    def add(self, prefix: list[int], rest: list[int], namespace: str, params: dict[str, Any]) -> None:
        self.count += 1
        try:
            self.bench.add(str(self.count), prefix + rest, namespace=namespace, **params)
        except QueueFull:
            assert self.bench.scheduler.stats().waiting >= 6
        except RequestInvalid:
            slots = self.bench.pool.layout.pages * self.bench.settings.page_size
            length = len(prefix + rest)
            assert length == 0 or length >= self.bench.settings.context_length or length + 1 > slots

    @rule(prefix=st.sampled_from(PREFIXES), count=st.integers(2, 4), max_tokens=st.integers(1, 30))
    def add_several(self, prefix: list[int], count: int, max_tokens: int) -> None:
        for last in range(count):
            self.add(prefix=prefix, rest=[last], namespace="", params={"max_tokens": max_tokens, "seed": last})

    @rule()
    def step(self) -> None:
        self.bench.step()

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.bench.step()

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.abort(data.draw(st.sampled_from(sorted(self.bench.requests))))

    @precondition(lambda self: self.bench.scheduler.has_work)
    @rule(data=st.data())
    def abort_in_flight(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.bench.requests)))
        self.bench.step(between=lambda: self.bench.abort(name))

    @precondition(lambda self: self.bench.requests)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.bench.requests)))
        self.bench.stop(name, data.draw(st.integers(0, 3)))

    @rule()
    def flush(self) -> None:
        assert self.bench.scheduler.flush_cache() is not self.bench.scheduler.has_work

    @invariant()
    def pages_and_slots_add_up(self) -> None:
        if hasattr(self, "bench"):
            self.bench.scheduler.check_invariants()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.drain()
            self.bench.check_outputs()
            self.bench.check_empty()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def random_bench(random_: random.Random, seed: int, slots: Sequence[int], overlap: bool) -> Bench:
    page_size = random_.choice([1, 3, 16])
    settings_ = config(
        chunked_prefill_size=random_.choice([1, 3, 7, 64]),
        page_size=page_size,
        max_running_requests=random_.choice([4, 16]),
        policy=random_.choice(["lpm", "fcfs"]),
        prefix_cache=seed % 3 != 0,
        shared_prefix_tokens=4,
        overlap=overlap,
    )
    bench = Bench(settings_, random_.randrange(60, 200) // page_size, slots=random_.choice(slots))
    bench.be_hopeful()
    return bench


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("slots", "hits_min"), [((0,), 200), ((4, 8, 30), 100)])
def test_two_thousand_random_steps_lose_nothing_and_change_no_output(
    slots: Sequence[int], hits_min: int, overlap: bool
) -> None:
    steps = retractions = hits = ahead = 0
    seed = 0
    while steps < 2000:
        seed += 1
        random_ = random.Random(seed)
        bench = random_bench(random_, seed, slots, overlap)
        for number in range(40):
            prompt = random_.choice(PREFIXES) + [random_.randrange(3) for _ in range(random_.randrange(1, 12))]
            n = random_.choice([1, 1, 1, 2, 3])
            max_tokens = random_.choice([1, 8, 30, None])
            stops = (number,) if number < 11 else ()
            bench.add(str(number), prompt, seed=number, n=n, max_tokens=max_tokens, stop_token_ids=stops)
            if max_tokens is None:
                bench.abort(str(random_.randrange(number + 1)))
            for _ in range(random_.randrange(5)):
                bench.step()
                steps += 1
        steps += bench.drain()
        bench.check_outputs()
        stats = bench.scheduler.stats()
        retractions += stats.retractions
        hits += stats.cached_tokens
        ahead += stats.steps_ahead
        bench.check_empty()
    assert retractions > 20
    assert hits > hits_min  # fewer with slots: a prefix needs a snapshot
    assert (ahead > 700) if overlap else (ahead == 0)
