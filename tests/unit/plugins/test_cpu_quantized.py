"""The native products of integers: error models, equal bits in company, layouts. Knows the test kit; knows no graph."""

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels.quantized import OPS, Products, prepare
from anychip_sdk import CATALOGUE
from anychip_sdk.testing import check_kernel, random_case

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
PRODUCTS = Products(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
#: rows, columns and outputs: one of each, tails of a block, a tile and the rows that are worked on together
SHAPES = [(1, 1, 1), (5, 48, 56), (4, 32, 33), (7, 100, 64), (13, 576, 40), (2, 2048, 31), (6, 128, 32), (0, 33, 7)]
SETS = ["portable", "avx2", "avx512", "avx512_bf16"]


def prepared(_name, tensor):
    return prepare(tensor).value


def placed(op, args):
    """The arguments as the engine hands them over: x as it is, weights packed."""
    return [args[0], *(prepare(one).value if isinstance(one, torch.Tensor) else one for one in args[1:])]


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
@pytest.mark.parametrize("op", OPS)
def test_products_are_within_the_error_model(instruction_set, op, dtype):
    for seed, (rows, columns, outputs) in enumerate(SHAPES):
        sizes = {"tokens": rows, "rows": rows, "hidden": columns, "out": outputs, "vocab": outputs}
        args = random_case(op, dtype, seed, bias=seed % 3 != 0, **sizes)
        found = check_kernel(CATALOGUE[op], getattr(PRODUCTS, op), args, dtype, prepare=prepared)
        assert found.passed, (sizes, found)


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("op", OPS)
def test_a_row_does_not_depend_on_its_mates_or_the_threads(instruction_set, op):
    args = placed(op, random_case(op, torch.bfloat16, 1, tokens=64, rows=64, hidden=512, out=96, vocab=96))
    kernel = getattr(PRODUCTS, op)
    together = kernel(*args)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(kernel(*args), together)
    finally:
        torch.set_num_threads(threads)
    for rows in (1, 5, 7):
        assert torch.equal(kernel(args[0][:rows], *args[1:]), together[:rows])


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("op", OPS)
def test_more_rows_and_columns_than_a_cache_holds_give_the_bits_of_few(instruction_set, op):
    args = placed(op, random_case(op, torch.bfloat16, 5, tokens=270, rows=270, hidden=3072, out=40, vocab=40))
    kernel = getattr(PRODUCTS, op)
    together = kernel(*args)
    for first, last in ((0, 3), (3, 40), (40, 270)):
        assert torch.equal(kernel(args[0][first:last], *args[1:]), together[first:last])


@pytest.mark.parametrize("op", OPS)
def test_every_instruction_set_has_the_same_levels_and_nearly_the_same_sums(op):
    args = placed(op, random_case(op, torch.float32, 2, tokens=9, rows=9, hidden=256, out=70, vocab=70))
    best = LIBRARY.kernels
    found = {}
    try:
        for name in ("portable", "avx2", "avx512", "avx512_bf16"):
            if LIBRARY.choose(name):
                found[name] = getattr(PRODUCTS, op)(*args)
    finally:
        LIBRARY.choose(best)
    for out in found.values():
        torch.testing.assert_close(out, found["portable"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_a_number_that_is_none_spoils_its_own_row_only(instruction_set):
    x, *weights = placed("linear_int8", random_case("linear_int8", torch.bfloat16, 4, tokens=8, hidden=70))
    clean = PRODUCTS.linear_int8(x, *weights)
    x = x.clone()
    x[2, 69], x[7, 0] = torch.nan, -torch.inf
    out = PRODUCTS.linear_int8(x, *weights)
    assert out[[2, 7]].isnan().all()
    others = [0, 1, 3, 4, 5, 6]
    assert torch.equal(out[others], clean[others])


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_rows_may_be_a_part_of_wider_ones(instruction_set):
    x, *weights = placed("linear_int4", random_case("linear_int4", torch.bfloat16, 3, tokens=6, hidden=64))
    wide = torch.full((6, 80), 7.0, dtype=x.dtype)
    wide[:, 5:69] = x
    assert torch.equal(PRODUCTS.linear_int4(wide[:, 5:69], *weights), PRODUCTS.linear_int4(x, *weights))
    assert torch.equal(PRODUCTS.linear_int4(x.t().contiguous().t(), *weights), PRODUCTS.linear_int4(x, *weights))


def test_an_int8_weight_takes_no_more_room_than_its_numbers_and_their_padding():
    made = prepare(torch.zeros(64, 96, dtype=torch.int8))
    assert made.nbytes == 64 * 96
    assert prepare(torch.zeros(33, 16, dtype=torch.uint8)).nbytes == 64 * 16
