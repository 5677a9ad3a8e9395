"""The native products of bfloat16: error models, equal bits in company, layouts. Knows the test kit; knows no graph."""

import pytest
import torch

import anychip_cpu
from anychip_cpu import native
from anychip_cpu.kernels import dense, packed
from anychip_sdk import CATALOGUE, load_backend
from anychip_sdk.registry import OpKey
from anychip_sdk.testing import check_kernel, random_case

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
PRODUCTS = dense.Dense(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
BFLOAT16 = dense.DTYPE
#: rows, columns and outputs: one of each, an odd column, tails of a tile, one block of rows and several
SHAPES = [(1, 1, 1), (5, 48, 56), (4, 33, 33), (14, 100, 64), (15, 576, 40), (67, 128, 31), (30, 64, 32), (0, 33, 7)]
SETS = ["portable", "avx2", "avx512", "avx512_bf16"]


def prepared(name, tensor):
    return dense.prepare(name, tensor).value


def operands(rows, columns, outputs, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator).to(BFLOAT16)
    weight = torch.randn(outputs, columns, generator=generator).to(BFLOAT16)
    return x, weight


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("op", ["linear", "lm_head"])
def test_products_are_within_the_error_model(instruction_set, op):
    for seed, (rows, columns, outputs) in enumerate(SHAPES):
        sizes = {"tokens": rows, "rows": rows, "hidden": columns, "out": outputs, "vocab": outputs}
        args = random_case(op, BFLOAT16, seed, bias=seed % 3 != 0, strided=seed % 2 == 1, **sizes)
        found = check_kernel(CATALOGUE[op], getattr(PRODUCTS, op), args, BFLOAT16, prepare=prepared)
        assert found.passed, (sizes, found)


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_a_row_does_not_depend_on_its_mates_or_the_threads(instruction_set):
    x, weight = operands(600, 96, 70)
    tiles = prepared("weight", weight)
    together = PRODUCTS.linear(x, tiles)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(PRODUCTS.linear(x, tiles), together)
    finally:
        torch.set_num_threads(threads)
    for rows in (1, 2, 13, 14, 15, 29, 100):
        assert torch.equal(PRODUCTS.linear(x[:rows], tiles), together[:rows])


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_logits_are_not_rounded_to_the_weights_dtype(instruction_set):
    x, weight = operands(3, 256, 64)
    exact = x.double() @ weight.double().T
    logits = PRODUCTS.lm_head(x, prepared("weight", weight))
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 1e-4


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_a_number_that_is_none_spoils_its_own_row_only(instruction_set):
    x, weight = operands(20, 70, 40)
    tiles = prepared("weight", weight)
    clean = PRODUCTS.linear(x, tiles)
    x[2, 69], x[17, 0] = torch.nan, torch.nan
    out = PRODUCTS.linear(x, tiles)
    spoilt = torch.zeros(20, dtype=torch.bool)
    spoilt[[2, 17]] = True
    assert out[spoilt].isnan().all()
    assert torch.equal(out[~spoilt], clean[~spoilt])


def test_a_weight_takes_no_more_room_than_its_numbers_and_their_padding():
    assert dense.prepare("weight", torch.zeros(64, 96, dtype=BFLOAT16)).nbytes == 64 * 96 * 2
    assert dense.prepare("weight", torch.zeros(33, 15, dtype=BFLOAT16)).nbytes == 64 * 16 * 2


def test_a_weight_may_begin_anywhere_in_memory():
    weight = operands(1, 64, 32)[1]
    shifted = torch.empty(weight.numel() + 1, dtype=BFLOAT16)[1:].view(weight.shape).copy_(weight)
    assert torch.equal(prepared("weight", shifted).tensor, prepared("weight", weight).tensor)


def test_biases_are_prepared_and_norms_are_left():
    vector = torch.ones(33, dtype=BFLOAT16)
    assert torch.equal(prepared("q_proj.bias", vector), torch.cat([torch.ones(33), torch.zeros(31)]))
    assert dense.prepare("q_norm.weight", vector) is None


def test_the_kernels_that_weights_are_prepared_for_are_the_ones_that_are_chosen(monkeypatch):
    weight = torch.ones(32, 16, dtype=BFLOAT16)
    for lack, kernel, layout in ((None, "native", "tiled"), ("another processor", "linear_packed", "blocked")):
        monkeypatch.setattr(dense, "lack", lambda lack=lack: lack)
        if BFLOAT16 not in packed.usable_dtypes():
            pytest.skip("this processor has no packed product of bfloat16")
        ops = load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0").ops
        assert ops.resolve(OpKey("linear", 1, BFLOAT16), {}).kernel.name == kernel
        assert anychip_cpu.anychip_prepare_weight("weight", weight, "linear").layout == layout
