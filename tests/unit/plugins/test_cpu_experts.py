"""The native mixtures of experts: error models, equal bits in company, layouts. Knows the test kit; knows no graph."""

from contextlib import contextmanager

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels import dense, experts
from anychip_sdk import CATALOGUE
from anychip_sdk.testing import check_kernel, random_case

LIBRARY = native.load()
pytestmark = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
EXPERTS = experts.Experts(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
BFLOAT16 = torch.bfloat16
SETS = ["portable", "avx2", "avx512", "avx512_bf16"]
#: one of each, odd sizes, tails of a tile, whole tiles, more rows of an expert than a block or a segment has, none
SHAPES = [
    {"tokens": 2, "experts": 1, "columns": 1, "hidden": 2, "inner": 1},
    {"tokens": 5, "experts": 4, "columns": 2, "hidden": 48, "inner": 56},
    {"tokens": 40, "experts": 3, "columns": 3, "hidden": 65, "inner": 33},
    {"tokens": 9, "experts": 16, "columns": 8, "hidden": 128, "inner": 96},
    {"tokens": 300, "experts": 2, "columns": 1, "hidden": 64, "inner": 32},
    {"tokens": 0, "experts": 4, "columns": 2, "hidden": 32, "inner": 32},
]


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[True, False], ids=["tiles", "vectors"])
def tiles(request):
    """With the processor's matrix tiles, where it has any, and without."""
    LIBRARY.use_tiles(request.param)
    yield request.param
    LIBRARY.use_tiles(True)


def preparing(op):
    return lambda name, tensor: experts.prepare(name, tensor, op).value


def given(op, dtype=BFLOAT16, seed=1, **sizes):
    """The arguments as the engine hands them over: weights prepared."""
    args = random_case(op, dtype, seed, **sizes)
    names = [(arg.name, arg.weight and one is not None) for arg, one in zip(CATALOGUE[op].args, args, strict=True)]
    return [preparing(op)(name, one) if is_weight else one for (name, is_weight), one in zip(names, args, strict=True)]


def dtypes_of(op):
    return experts.DTYPES if op == "moe_experts" else tuple(native.DTYPES)


@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("op", experts.OPS)
def test_mixtures_are_within_the_error_model(instruction_set, op):
    for dtype in dtypes_of(op):
        for seed, sizes in enumerate(SHAPES):
            args = random_case(op, dtype, seed, bias=seed % 2 == 1, **sizes)
            found = check_kernel(CATALOGUE[op], EXPERTS.kernel(op), args, dtype, prepare=preparing(op))
            assert found.passed, (dtype, sizes, found)


def test_experts_are_within_the_error_model_by_tiles_and_by_vectors(tiles):
    for seed, sizes in enumerate(SHAPES):
        args = random_case("moe_experts", BFLOAT16, seed, **{**sizes, "hidden": 96, "inner": 64})
        op = CATALOGUE["moe_experts"]
        assert check_kernel(op, EXPERTS.kernel(op.name), args, BFLOAT16, prepare=preparing(op.name)).passed


@pytest.mark.parametrize("dtype", experts.DTYPES)
@pytest.mark.parametrize("op", experts.OPS)
def test_a_row_does_not_depend_on_its_mates_or_the_threads(tiles, op, dtype):
    sizes = {"tokens": 600, "experts": 4, "columns": 2, "hidden": 64, "inner": 96}
    x, ids, weights, *rest = given(op, dtype, **sizes)
    kernel = EXPERTS.kernel(op)
    together = kernel(x, ids, weights, *rest)
    with threads(3):
        assert torch.equal(kernel(x, ids, weights, *rest), together)
    for rows in (slice(0, 1), slice(7, 9), slice(20, 60), slice(100, 400)):
        assert torch.equal(kernel(x[rows], ids[rows], weights[rows], *rest), together[rows])


def test_tokens_whose_results_do_not_fit_at_once_come_one_after_the_other():
    x, ids, weights, *rest = given("moe_experts", tokens=3, experts=2, columns=2, hidden=32, inner=32)
    many = 96 * 2**20 // (2 * 2 * 32 * 6) + 5
    rows = torch.arange(many) % 3
    together = EXPERTS.kernel("moe_experts")(x[rows], ids[rows], weights[rows], *rest)
    assert torch.equal(together, EXPERTS.kernel("moe_experts")(x, ids, weights, *rest)[rows])


@pytest.mark.parametrize("op", experts.OPS)
def test_columns_of_experts_elsewhere_add_nothing_and_read_nothing(op):
    x, ids, weights, *rest = given(op, tokens=8, experts=4, columns=2, hidden=32, inner=32)
    first = rest[-2] if op == "moe_experts_int8" else rest[-1]
    elsewhere = torch.tensor([[first - 1, first + 4]], dtype=torch.int32).expand(8, 2)
    spoilt = torch.full_like(weights, torch.nan)
    assert torch.equal(EXPERTS.kernel(op)(x, elsewhere, spoilt, *rest), torch.zeros_like(x))
    beside = EXPERTS.kernel(op)(x, torch.cat((elsewhere, ids), 1), torch.cat((spoilt, weights), 1), *rest)
    assert torch.equal(beside, EXPERTS.kernel(op)(x, ids, weights, *rest))


@pytest.mark.parametrize("op", experts.OPS)
def test_a_number_that_is_none_spoils_its_own_row_only(tiles, op):
    x, ids, weights, *rest = given(op, tokens=40, experts=4, columns=2, hidden=64, inner=32)
    ids = ids.clamp(3, 6)  # all local, whatever the first
    clean = EXPERTS.kernel(op)(x, ids, weights, *rest)
    x, weights = x.clone(), weights.clone()
    x[2, 63], weights[17, 1] = torch.nan, torch.nan
    out = EXPERTS.kernel(op)(x, ids, weights, *rest)
    others = torch.tensor([row not in (2, 17) for row in range(40)])
    assert torch.equal(out[others], clean[others])


def test_rows_may_be_a_part_of_wider_ones():
    x, *rest = given("moe_experts", tokens=6, experts=4, columns=2, hidden=64, inner=32)
    wide = torch.full((6, 80), 7.0, dtype=x.dtype)
    wide[:, 5:69] = x
    kernel = EXPERTS.kernel("moe_experts")
    assert torch.equal(kernel(wide[:, 5:69], *rest), kernel(x, *rest))
    assert torch.equal(kernel(x.t().contiguous().t(), *rest), kernel(x, *rest))


def test_each_expert_of_bfloat16_is_as_small_as_it_can_be():
    """One whose magnitudes are too many stays as it is, beside the others in twelve bits a number."""
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**15), 2**15, (1, 64, 256), generator=generator).to(torch.int16).view(BFLOAT16)
    weight = torch.cat((torch.randn(2, 64, 256, generator=generator).to(BFLOAT16), anything))
    packed = experts.prepare("experts.down_weight", weight, "moe_experts").value
    assert packed.slices[:, 1].tolist() == [dense.COMPACT_BITS, dense.COMPACT_BITS, dense.PLAIN_BITS]


def test_gate_and_up_are_filled_up_each():
    bias = torch.arange(1.0, 21.0).view(1, 20)
    padded = experts.prepare("layers.0.experts.gate_up_bias", bias, "moe_experts").value
    assert padded.shape == (1, 64)
    assert torch.equal(padded[0, :10], bias[0, :10])
    assert torch.equal(padded[0, 32:42], bias[0, 10:])
    assert experts.prepare("layers.0.experts.down_bias", bias, "moe_experts").value.shape == (1, 32)


@pytest.mark.parametrize("op", experts.OPS)
def test_experts_may_be_prepared_one_by_one(op):
    """As a model is loaded: the numbers are those of a stack that is prepared whole."""
    args = random_case(op, BFLOAT16, 1, tokens=9, experts=4, columns=2, hidden=64, inner=48, bias=True)
    whole, by_parts = [], []
    for arg, one in zip(CATALOGUE[op].args, args, strict=True):
        if not arg.weight or one is None:
            whole.append(one)
            by_parts.append(one)
            continue
        prepared = experts.prepare(arg.name, one, op)
        whole.append(prepared.value)
        if prepared.join is None:
            assert one.dim() == 2  # a bias
            by_parts.append(prepared.value)
            continue
        parts = [experts.prepare(arg.name, one[index : index + 1], op) for index in range(len(one))]
        joined = parts[0].join(parts)
        assert joined.nbytes == prepared.nbytes
        by_parts.append(joined.value)
    assert torch.equal(EXPERTS.kernel(op)(*by_parts), EXPERTS.kernel(op)(*whole))
