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
    assert dense.plain(torch.zeros(64, 96, dtype=BFLOAT16)).nbytes == 64 * 96 * 2
    assert dense.plain(torch.zeros(33, 15, dtype=BFLOAT16)).nbytes == 64 * 16 * 2


def test_a_compact_weight_takes_twelve_bits_a_number_and_a_line_or_two_a_tile():
    weight = torch.zeros(64, 1024, dtype=BFLOAT16)
    assert dense.prepare("weight", weight).layout == "compact"
    assert dense.prepare("weight", weight).nbytes == 64 * 1024 * 12 // 8 + 2 * 2 * 64
    few_others = operands(1, 1024, 512)[1]
    assert dense.prepare("weight", few_others).nbytes < 0.78 * few_others.nbytes


@pytest.mark.parametrize("columns", [1023, 1022, 1021])
def test_columns_that_make_no_whole_groups_stay_plain(columns):
    assert dense.prepare("weight", torch.zeros(32, columns, dtype=BFLOAT16)).layout == "tiled"


def test_weights_of_too_many_magnitudes_stay_plain():
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**15), 2**15, (64, 256), generator=generator).to(torch.int16).view(BFLOAT16)
    assert dense.prepare("weight", anything).layout == "tiled"


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("unusual", [0, 1, 40])
def test_compact_weights_give_the_bits_that_plain_ones_give(instruction_set, unusual):
    """Whatever a few of them are: tiny, huge, no numbers; for one block of rows, for two and for more."""
    generator = torch.Generator().manual_seed(unusual)
    for columns, outputs in ((1024, 70), (64, 32), (520, 40)):
        x, weight = operands(43, columns, outputs)
        at = torch.randint(weight.numel(), (unusual * weight.numel() // 71680,), generator=generator)
        bits = torch.randint(-(2**15), 2**15, at.shape, generator=generator).to(torch.int16)
        weight.view(torch.int16).view(-1)[at] = bits
        compact = dense.compact(weight)
        assert compact is not None
        for rows in (1, 2, 13, 14, 17, 43):
            expected = PRODUCTS.lm_head(x[:rows], dense.plain(weight).value)
            found = PRODUCTS.lm_head(x[:rows], compact.value)
            assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_a_compact_weight_may_be_a_part_of_another():
    wide = operands(1, 256, 64)[1]
    part = wide[:, 64:192]
    assert torch.equal(dense.compact(part).value.tensor, dense.compact(part.contiguous()).value.tensor)


def test_a_weight_may_begin_anywhere_in_memory():
    weight = operands(1, 64, 32)[1]
    shifted = torch.empty(weight.numel() + 1, dtype=BFLOAT16)[1:].view(weight.shape).copy_(weight)
    assert torch.equal(prepared("weight", shifted).tensor, prepared("weight", weight).tensor)


def test_biases_are_prepared_and_norms_are_left():
    vector = torch.ones(33, dtype=BFLOAT16)
    assert torch.equal(prepared("q_proj.bias", vector), torch.cat([torch.ones(33), torch.zeros(31)]))
    assert dense.prepare("q_norm.weight", vector) is None


def test_the_kernels_that_weights_are_prepared_for_are_the_ones_that_are_chosen(monkeypatch):
    weight = torch.ones(32, 64, dtype=BFLOAT16)
    for lack, kernel, layout in ((None, "native", "compact"), ("another processor", "linear_packed", "blocked")):
        monkeypatch.setattr(dense, "lack", lambda lack=lack: lack)
        if BFLOAT16 not in packed.usable_dtypes():
            pytest.skip("this processor has no packed product of bfloat16")
        ops = load_backend("cpu", anychip_cpu, distribution="anychip-cpu", version="0").ops
        assert ops.resolve(OpKey("linear", 1, BFLOAT16), {}).kernel.name == kernel
        assert anychip_cpu.anychip_prepare_weight("weight", weight, "linear").layout == layout
