"""The rows of page tables that are kept from step to step equal those written anew. Knows no tensor."""

import random

import numpy as np
import pytest

from anychip.engine.batch import Row
from anychip.engine.page_rows import PageRows
from anychip.engine.request import GenerateRequest
from anychip.engine.sequence import Sequence

SIZE = 2


def sequence(pages: list[int]) -> Sequence:
    one = Sequence(GenerateRequest("r", [1]))
    one.pages = pages
    return one


def row(one: Sequence, pages: int) -> Row:
    """A decode that reads so many pages."""
    return Row(one, pages * SIZE - 1, 1, 1)


def test_the_table_is_as_wide_as_its_longest_row_and_zero_behind_the_others() -> None:
    table = PageRows(SIZE).table([row(sequence([5, 6, 7]), 3), row(sequence([8, 9]), 1)])
    assert table.dtype == np.int32
    assert table.tolist() == [[5, 6, 7], [8, 0, 0]]


def test_a_row_that_follows_a_longer_one_keeps_nothing_of_it() -> None:
    rows = PageRows(SIZE)
    rows.table([row(sequence([5, 6, 7]), 3), row(sequence([1, 2, 3]), 3)])
    assert rows.table([row(sequence([8]), 1), row(sequence([4, 5, 6]), 3)]).tolist() == [[8, 0, 0], [4, 5, 6]]


def test_a_table_that_was_handed_out_does_not_change_later() -> None:
    rows, one = PageRows(SIZE), sequence([5, 6])
    before = rows.table([row(one, 1)])
    one.pages[0], one.table_version = 9, 1
    assert rows.table([row(one, 2)]).tolist() == [[9, 6]]
    assert before.tolist() == [[5]]


def test_a_long_row_that_goes_on_is_read_where_it_is_new_only() -> None:
    class Counted(list[int]):
        read = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            found = super().__getitem__(key)
            Counted.read += len(found)
            return found

    rows, one = PageRows(SIZE), sequence(Counted(range(1000)))
    for pages in (998, 998, 999, 1000):
        rows.table([row(one, pages)])
    assert Counted.read == 1000


@pytest.mark.parametrize("seed", range(3))
def test_random_steps_equal_tables_written_anew(seed: int) -> None:
    random_ = random.Random(seed)
    rows, running = PageRows(SIZE), [(sequence([]), 0) for _ in range(3)]
    for _ in range(300):
        for number, (one, used) in enumerate(running):
            what = random_.randrange(8)
            if what == 0:  # another takes the place
                running[number] = (sequence([]), 0)
            elif what == 1 and one.pages:  # a page is copied
                one.pages[random_.randrange(len(one.pages))] = random_.randrange(1, 999)
                one.table_version += 1
            elif what == 2:  # retracted, and back with less
                one.pages, one.table_version = [], one.table_version + 1
                running[number] = (one, 0)
            elif what < 6:
                one.pages.append(random_.randrange(1, 999))
                running[number] = (one, used + 1)
        random_.shuffle(running)
        step = [(one, used) for one, used in running if used]
        if step:
            width = max(used for _, used in step)
            expected = [one.pages[:used] + [0] * (width - used) for one, used in step]
            assert rows.table([row(one, used) for one, used in step]).tolist() == expected
