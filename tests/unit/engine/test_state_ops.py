"""Operations on slots, run on a pool."""

from anychip.engine.state_ops import ClearSlot, CopySlot, run_state_ops
from support.fake_pool import FakePool


def test_an_operation_sees_what_the_one_before_it_wrote() -> None:
    pool = FakePool(1, 1, slots=4)
    pool.states = [[1], [2], [3], [4]]
    run_state_ops([CopySlot(0, 1), ClearSlot(0), CopySlot(1, 2), CopySlot(0, 3)], pool)
    assert pool.states == [[], [1], [1], []]
