"""Memory from the system: where pieces lie, and that they go back. Knows addresses; knows no kernel."""

import gc

import pytest

from anychip_cpu import memory
from anychip_cpu.memory import HUGE_BYTES, Arena


def test_pieces_lie_side_by_side_on_the_alignment():
    arena = Arena(alignment=64)
    pieces = [arena.take(nbytes) for nbytes in (1, 64, 65, 10)]
    begin = pieces[0].data_ptr()
    assert begin % HUGE_BYTES == 0
    assert [piece.data_ptr() - begin for piece in pieces] == [0, 64, 128, 256]
    assert [piece.numel() for piece in pieces] == [1, 64, 65, 10]


def test_pieces_are_zeroed_and_apart():
    arena = Arena()
    first, second = arena.take(100), arena.take(100)
    first.fill_(7)
    assert not second.any()


def test_what_does_not_fit_an_area_gets_one_of_its_own(monkeypatch):
    monkeypatch.setattr(memory, "AREA_BYTES", 4 * HUGE_BYTES)
    arena = Arena()
    small, large, after = (arena.take(nbytes) for nbytes in (8, 5 * HUGE_BYTES, 8))
    large[-1] = 1
    assert large.data_ptr() % HUGE_BYTES == 0
    assert not small.any()
    assert not after.any()


def test_an_area_goes_back_with_the_last_of_its_pieces():
    arena = Arena()
    first, second = arena.take(8), arena.take(8)
    area = arena._area
    del first
    gc.collect()
    assert area() is not None
    del second
    gc.collect()
    assert area() is None
    assert not arena.take(8).any()


@pytest.mark.parametrize("nbytes", [0, 1, HUGE_BYTES - 1, HUGE_BYTES, 3 * HUGE_BYTES + 5])
def test_mapped_memory_is_as_large_as_asked_and_aligned(nbytes):
    found = memory.mapped(nbytes, 256)
    assert found.numel() == nbytes
    assert found.data_ptr() % (HUGE_BYTES if nbytes >= HUGE_BYTES else 256) == 0
