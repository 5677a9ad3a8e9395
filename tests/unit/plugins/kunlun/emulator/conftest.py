"""Virtual hosts for tests: small cards, closed afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from anychip_kunlun.emulator import Profile, close_stack, open_stack
from anychip_kunlun.stack import Stack

OpenHost = Callable[..., Stack]


@pytest.fixture
def open_host() -> Iterator[OpenHost]:
    stacks: list[Stack] = []

    def make(**settings: Any) -> Stack:
        stack = open_stack(Profile(**{"memory_bytes": 64 << 20, **settings}))
        stacks.append(stack)
        return stack

    yield make
    for stack in stacks:
        close_stack(stack)


@pytest.fixture
def host(open_host: OpenHost) -> Stack:
    return open_host()
