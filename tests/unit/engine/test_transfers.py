"""What a step takes to the device and leaves there: torch's own way, or a stream of its own."""

import torch

from anychip.engine.transfers import Transfers
from anychip_sdk.device import Capabilities
from anychip_sdk.testing.device import ReferenceDevice
from support.late_device import POISON, LateDevice


def late() -> LateDevice:
    return LateDevice("late", 1 << 20, Capabilities(async_streams=True))


def test_a_device_that_computes_at_once_needs_no_copy_and_no_mark():
    transfers, values = Transfers(ReferenceDevice()), torch.arange(3)
    assert transfers.to_device(values) is values
    assert transfers.to_host(values) is values
    assert transfers.mark() is None
    transfers.wait(None)


def test_what_is_uploaded_is_the_device_s_own_when_the_call_returns():
    transfers, values = Transfers(late()), torch.arange(3)
    held = transfers.to_device(values)
    values.zero_()
    assert held.tolist() == [0, 1, 2]


def test_a_result_is_there_when_its_mark_was_waited_for_whatever_comes_behind():
    device = late()
    transfers = Transfers(device)
    first = transfers.to_device(torch.arange(3))
    mark = transfers.mark()
    behind = transfers.to_device(torch.arange(2))
    transfers.mark()
    assert transfers.to_host(first).tolist() == [POISON] * 3
    transfers.wait(mark)
    assert transfers.to_host(first).tolist() == [0, 1, 2]
    assert transfers.to_host(behind).tolist() == [POISON] * 2
