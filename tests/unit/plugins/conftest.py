"""One thread for torch: these tests are small, and threads that wait for each other are slow on a busy machine."""

from collections.abc import Iterator

import pytest
import torch

from anychip_cpu import native


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The native kernels of one instruction set, where the processor has it; its name is the parameter."""
    library = native.library()
    assert not isinstance(library, native.Absent)
    best = library.kernels
    if not library.choose(request.param):
        pytest.skip(f"no {request.param} kernels on this processor")
    yield request.param
    library.choose(best)
