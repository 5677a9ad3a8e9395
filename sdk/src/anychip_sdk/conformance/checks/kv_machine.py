"""Random histories of a KV pool against a model of a few lines; a failing one is shrunk. Knows counts and contents."""

from __future__ import annotations

from contextlib import ExitStack

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from anychip_sdk.conformance.context import Context
from anychip_sdk.conformance.requirements import Violation, requirement
from anychip_sdk.conformance.trial.placing import keys_and_values
from anychip_sdk.conformance.trial.pools import HEAD_DIM, KV_HEADS, caches, pool_of
from anychip_sdk.errors import KVPoolExhausted

PAGES = 9
STEPS = 50  #: of one history


class PoolMachine(RuleBasedStateMachine):
    """A pool and its model: page -> references, page -> the number that fills it.

    Args:
        context: with the backend; each history gets a pool of its own.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._opened = ExitStack()
        self.pool = self._opened.enter_context(
            pool_of(context, PAGES, 4, groups=(keys_and_values(KV_HEADS, HEAD_DIM),))
        )
        self.total = self.pool.layout.pages
        self.held: dict[int, int] = {}
        self.contents: dict[int, float] = {}
        self.stamp = 0.0
        self.trace: list[str] = []

    def teardown(self) -> None:
        self._opened.close()

    def wrong(self, message: str) -> Violation:
        return Violation(f"{message}; after {' '.join(self.trace)}", trace=list(self.trace))

    @rule(count=st.integers(0, PAGES + 2))
    def alloc(self, count: int) -> None:
        self.trace.append(f"alloc({count})")
        free = self.total - len(self.held)
        try:
            pages = self.pool.alloc(count)
        except KVPoolExhausted:
            if count <= free:
                raise self.wrong(f"{count} pages were refused, {free} are free") from None
            return
        if count > free:
            raise self.wrong(f"{count} pages were given, {free} were free")
        if len(pages) != count or len(set(pages)) != count or not set(pages) <= set(range(self.total)):
            raise self.wrong(f"alloc({count}) gave {pages} of the pages 0..{self.total - 1}")
        if set(pages) & set(self.held):
            raise self.wrong(f"alloc({count}) gave {pages}, of which some are held: {sorted(self.held)}")
        for page in pages:
            self.held[page] = 1
            self.write(page)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=4))
        self.trace.append(f"retain({pages})")
        self.pool.retain(pages)
        for page in pages:
            self.held[page] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        pages = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=4, unique=True))
        self.trace.append(f"free({pages})")
        self.pool.free(pages)
        for page in pages:
            self.held[page] -= 1
            if not self.held[page]:
                del self.held[page], self.contents[page]

    @rule(page=st.integers(-1, PAGES))
    def free_what_is_not_held(self, page: int) -> None:
        if page in self.held:
            return
        self.trace.append(f"free([{page}])!")
        try:
            self.pool.free([*sorted(self.held)[:1], page])
        except ValueError:
            return
        raise self.wrong(f"freeing page {page} was accepted, though it is free or foreign")

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        src, dst = data.draw(st.permutations(sorted(self.held)))[:2]
        self.trace.append(f"copy({src},{dst})")
        self.pool.copy_pages([src], [dst])
        self.contents[dst] = self.contents[src]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.trace.append(f"write({page})")
        self.write(page)

    def write(self, page: int) -> None:
        """Fill a page of every cache with a number of its own."""
        self.stamp = (self.stamp + 1) % 100  # exact in every dtype, a half added
        self.contents[page] = self.stamp
        for number, (_, cache) in enumerate(caches(self.pool, 1)):
            cache[page].fill_(self.stamp + 0.5 * number)

    @invariant()
    def counts_agree(self) -> None:
        for page in range(self.total):
            found, right = self.pool.refcount(page), self.held.get(page, 0)
            if found != right:
                raise self.wrong(f"page {page} has {found} references, expected {right}")
        stats = self.pool.stats()
        shared = sum(count > 1 for count in self.held.values())
        right_stats = (self.total, self.total - len(self.held), len(self.held), shared)
        if (stats.pages_total, stats.pages_free, stats.pages_used, stats.pages_shared) != right_stats:
            raise self.wrong(f"stats are {stats}, expected total, free, used, shared {right_stats}")

    @invariant()
    def contents_agree(self) -> None:
        for number, (name, cache) in enumerate(caches(self.pool, 1)):
            for page, stamp in self.contents.items():
                if not bool((cache[page] == stamp + 0.5 * number).all()):
                    raise self.wrong(f"in the {name}, page {page} doesn't hold what its holder wrote")


@requirement(
    "AC-KV-002",
    level="MUST",
    text="Through any history of calls, pages MUST be conserved: free plus held is all, a page's count is the number "
    "of its holders, no page is given twice, and held pages MUST keep their contents.",
)
def histories_agree_with_the_model(context: Context) -> None:
    examples = context.scaled(20, 40, 160, 1000)
    options = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    context.measured["steps_at_most"] = examples * STEPS
    made: list[PoolMachine] = []

    def fresh() -> PoolMachine:
        made.append(PoolMachine(context))
        return made[-1]

    set_hypothesis_home_dir(context.scratch / "hypothesis")  # it keeps notes in the working folder otherwise
    try:
        run_state_machine_as_test(fresh, settings=options)  # type: ignore[arg-type]  # any factory will do
    except Flaky as error:
        raise Violation(f"the pool's answers to the same history differ: {error}") from error
    except Violation:
        raise
    except Exception as error:
        trace = made[-1].trace if made else []
        message = f"{type(error).__name__}: {error}; after {' '.join(trace)}"
        raise Violation(message, trace=trace) from error
    finally:
        set_hypothesis_home_dir(None)


__all__ = [
    "PoolMachine",
    "histories_agree_with_the_model",
]
