"""The reference chip's kernels: within every error model, and their bits depend on no order of summing."""

import pytest
import torch

from anychip_sdk import CATALOGUE
from anychip_sdk.conformance.reference.kernels import reference_kernel
from anychip_sdk.testing import check_kernel, random_case


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_kernel_is_within_its_ops_error_model(name, dtype):
    found = check_kernel(CATALOGUE[name], reference_kernel(name), random_case(name, dtype, seed=1), dtype)
    assert found.passed, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_products_row_does_not_depend_on_its_mates_or_its_address(dtype):
    x, weight, bias = random_case("linear", dtype, seed=0, tokens=64, hidden=130, out=67)
    whole = reference_kernel("linear")(x, weight, bias)
    memory = torch.empty(x.shape[1] + 1, dtype=dtype)
    for row in range(len(x)):
        alone = memory[row % 2 :][: x.shape[1]].unsqueeze(0)
        alone.copy_(x[row])
        assert torch.equal(reference_kernel("linear")(alone, weight, bias)[0], whole[row])


def test_what_is_written_in_place_is_returned_as_the_same_memory():
    args = random_case("mha", torch.float32, seed=0)
    places = {arg.name: value for arg, value in zip(CATALOGUE["mha"].args, args, strict=True) if arg.mutated}
    before = {name: value.clone() for name, value in places.items()}
    _, *caches = reference_kernel("mha")(*args)
    assert [one.data_ptr() for one in caches] == [one.data_ptr() for one in places.values()]
    assert all(not torch.equal(places[name], before[name]) for name in places)
