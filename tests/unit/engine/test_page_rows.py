"""The rows of page tables that are kept from step to step equal those written anew. Knows no tensor."""

import random

import numpy as np
import pytest

from anychip.engine.page_rows import PageRows, PageTable, Table

SIZE = 2


def table_of(pages: list[int]) -> PageTable:
    one = PageTable()
    one.pages = pages
    return one


def lines(rows: PageRows, *used: tuple[PageTable, int]) -> Table:
    """The array for tables of which so many pages are read."""
    return rows.table([one for one, _ in used], [pages * SIZE for _, pages in used])


def test_the_table_is_as_wide_as_its_longest_row_and_zero_behind_the_others() -> None:
    table = lines(PageRows(SIZE, 3, 1000), (table_of([5, 6, 7]), 3), (table_of([8, 9]), 1))
    assert table.dtype == np.int32
    assert table.tolist() == [[5, 6, 7], [8, 0, 0]]


def test_a_row_that_follows_a_longer_one_keeps_nothing_of_it() -> None:
    rows = PageRows(SIZE, 3, 1000)
    lines(rows, (table_of([5, 6, 7]), 3), (table_of([1, 2, 3]), 3))
    assert lines(rows, (table_of([8]), 1), (table_of([4, 5, 6]), 3)).tolist() == [[8, 0, 0], [4, 5, 6]]


def test_a_table_that_changes_is_written_again() -> None:
    rows, one = PageRows(SIZE, 3, 1000), table_of([5, 6])
    assert lines(rows, (one, 1)).tolist() == [[5]]
    one.update(0, [9, 6])
    assert lines(rows, (one, 2)).tolist() == [[9, 6]]


def test_a_long_row_that_goes_on_is_read_where_it_is_new_only() -> None:
    class Counted(list[int]):
        read = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            found = super().__getitem__(key)
            Counted.read += len(found)
            return found

    rows, one = PageRows(SIZE, 3, 1000), table_of(Counted(range(1000)))
    for pages in (998, 998, 999, 1000):
        lines(rows, (one, pages))
    assert Counted.read == 1000


@pytest.mark.parametrize("seed", range(3))
def test_random_steps_equal_tables_written_anew(seed: int) -> None:
    random_ = random.Random(seed)
    rows, running = PageRows(SIZE, 3, 1000), [(table_of([]), 0) for _ in range(3)]
    for _ in range(300):
        for number, (one, used) in enumerate(running):
            what = random_.randrange(8)
            if what == 0:  # another takes the place
                running[number] = (table_of([]), 0)
            elif what == 1 and one.pages:  # a page is copied
                place = random_.randrange(len(one.pages))
                one.update(place, [random_.randrange(1, 999), *one.pages[place + 1 :]])
            elif what == 2:  # retracted, and back with less
                one.update(0, [])
                running[number] = (one, 0)
            elif what < 6:
                one.update(len(one.pages), [random_.randrange(1, 999)])
                running[number] = (one, used + 1)
        random_.shuffle(running)
        step = [(one, used) for one, used in running if used]
        if step:
            width = max(used for _, used in step)
            expected = [one.pages[:used] + [0] * (width - used) for one, used in step]
            assert lines(rows, *step).tolist() == expected
