"""Arguments lie where they are wanted, between guards. Knows no kernel."""

import pytest
import torch

from anychip_sdk.conformance.trial.placing import GUARD, GUARD_BYTES, PERIOD_BYTES, PLACES, guarded

CPU = torch.device("cpu")
VALUES = [torch.arange(96.0).reshape(4, 24), torch.arange(64).bfloat16()[::2], torch.ones(3, dtype=torch.int8)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", VALUES, ids=["float32", "strided-bfloat16", "int8"])
def test_an_argument_lies_at_the_wanted_place_between_whole_guards(value, place):
    found = guarded(value, CPU, place=place)
    assert found.tensor.data_ptr() % PERIOD_BYTES == place
    assert torch.equal(found.tensor, value)
    assert found.tensor.stride() == value.stride()
    assert (found.whole[: found.start] == GUARD).all()
    assert (found.whole[found.stop :] == GUARD).all()
    assert min(found.start, len(found.whole) - found.stop) >= GUARD_BYTES


def test_a_shift_is_counted_from_the_place():
    assert guarded(VALUES[0], CPU, shift=3, place=64).tensor.data_ptr() % PERIOD_BYTES == 64 + 3 * 4


def test_every_bit_of_an_address_beyond_alignment_differs_between_the_first_two_places():
    """So a kernel whose result depends on one of them gives two results for certain, wherever buffers lie."""
    for bit in range(6, PERIOD_BYTES.bit_length() - 1):
        assert {place >> bit & 1 for place in PLACES[:2]} == {0, 1}
