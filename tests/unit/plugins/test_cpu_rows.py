"""The native ops on rows: error models, equal bits in company, bounds; each instruction set. Knows the test kit."""

from dataclasses import replace

import pytest
import torch

from anychip_cpu import native
from anychip_cpu.kernels import _natives, elementwise, rope, rows, sampling
from anychip_cpu.kernels.attention import NativeAttention, PagedAttention
from anychip_cpu.kernels.blocks import Mha, plain
from anychip_sdk import CATALOGUE
from anychip_sdk.registry import Kernel
from anychip_sdk.step import Paged, Step
from anychip_sdk.testing import check_kernel, random_case
from support.kernel_calls import call_facts

LIBRARY = native.load()
BUILT = pytest.mark.skipif(isinstance(LIBRARY, native.Absent), reason=f"native kernels: {LIBRARY}")
ROWS = rows.Rows(None if isinstance(LIBRARY, native.Absent) else LIBRARY)
KERNELS = _natives(ROWS)
#: of an op on rows and heads: tails of every vector's width, a few elements, many
SIZES = [
    {"tokens": 1, "hidden": 64, "inner": 64, "head_dim": 16},
    {"tokens": 7, "hidden": 33, "inner": 17, "head_dim": 48, "page_size": 3},
    {"tokens": 16, "hidden": 576, "inner": 200, "head_dim": 80, "page_size": 1},
    {"tokens": 67, "hidden": 3, "inner": 5, "head_dim": 128, "rotary_dim": 50, "pages": 80},
    {"tokens": 3, "hidden": 4096, "inner": 1, "head_dim": 10, "rotary_dim": 6},
]
SETS = ["portable", "avx2", "avx512"]


def checked(op, dtype, seed, **sizes):
    args = random_case(op, dtype, seed, strided=seed % 2 == 1, **sizes)
    return check_kernel(CATALOGUE[op], KERNELS[op], args, dtype)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
@pytest.mark.parametrize("op", list(KERNELS))
def test_rows_are_within_the_error_model(instruction_set, op, dtype):
    for seed, sizes in enumerate(SIZES * 2):
        found = checked(op, dtype, seed, **sizes)
        assert found.passed, (sizes, found)


def part_of(value, start, stop):
    """Some tokens of an argument that has 300."""
    if isinstance(value, Step):
        return replace(value, positions=value.positions[start:stop])
    return value[start:stop] if isinstance(value, torch.Tensor) and value.shape[0] == 300 else value


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("dtype", list(native.DTYPES))
@pytest.mark.parametrize("op", ["rms_norm", "add_rms_norm", *elementwise.GATES, "rope", "qk_norm_rope"])
def test_a_row_does_not_depend_on_its_mates_or_the_threads(instruction_set, op, dtype):
    args = random_case(op, dtype, 0, tokens=300, hidden=260, inner=260, heads=4, head_dim=64)

    def run(*some):
        results = KERNELS[op](*some)
        return results if isinstance(results, tuple) else (results,)

    whole = run(*args)
    torch.set_num_threads(2)
    try:
        assert all(map(torch.equal, run(*args), whole))
    finally:
        torch.set_num_threads(1)
    for start, stop in [(0, 1), (5, 12), (299, 300)]:
        part = [part_of(a, start, stop) for a in args]
        assert all(torch.equal(got, full[start:stop]) for got, full in zip(run(*part), whole, strict=True))


@BUILT
@pytest.mark.parametrize("dtype", list(native.DTYPES))
def test_a_sum_and_its_norm_have_the_bits_of_the_two_ops(dtype):
    x, residual, weight, eps = random_case("add_rms_norm", dtype, 0, tokens=9, hidden=70)
    out, total = ROWS.add_rms_norm(x, residual, weight, eps)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, ROWS.rms_norm(total, weight, eps))


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_gates_of_any_size_keep_their_precision(instruction_set):
    gate = torch.cat((torch.linspace(-85, 120, 3001), torch.tensor([-0.0, 0.0, 1e-30, -1e-30, 3e38, -3e38])))
    for op in elementwise.GATES:
        found = check_kernel(CATALOGUE[op], KERNELS[op], (gate, torch.ones_like(gate)), torch.float32)
        assert found.passed, (op, found)


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
def test_what_is_no_number_stays_one(instruction_set):
    x = torch.randn(3, 37, generator=torch.Generator().manual_seed(0))
    x[1, 36] = torch.nan
    ones = torch.ones(37)
    for out in (ROWS.rms_norm(x, ones, 1e-6), ROWS.add_rms_norm(x, x, ones, 1e-6)[0]):
        assert out.isnan().all(dim=1).tolist() == [False, True, False]
    for gate in ("silu_mul", "sigmoid_mul"):
        assert torch.equal(KERNELS[gate](x, ones.expand(3, -1)).isnan(), x.isnan())


@BUILT
@pytest.mark.parametrize("instruction_set", SETS, indirect=True)
@pytest.mark.parametrize("vocab", [1, 15, 1024, 5003])
def test_the_first_of_the_largest_logits_is_taken(instruction_set, vocab):
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randint(0, 40, (33, vocab), generator=generator).float()
    logits[1] = -torch.inf
    logits[2, vocab // 2 :] = torch.inf
    logits[3] = torch.nan
    logits[4, vocab - 1] = torch.nan
    assert torch.equal(ROWS.argmax(logits), logits.max(dim=-1).indices)
    wide = torch.cat((logits, logits + 50), dim=1)
    assert torch.equal(ROWS.argmax(wide[:, :vocab]), ROWS.argmax(logits))


@BUILT
@pytest.mark.parametrize("number", [-1, 256])
def test_a_position_or_slot_out_of_range_is_refused_before_anything_is_written(number):
    q, k, step, table = random_case("rope", torch.float32, 0)
    wrong = step.positions.index_fill(0, torch.tensor([3]), number)
    with pytest.raises(IndexError, match="position is not below 256"):
        ROWS.rope(q, k, replace(step, positions=wrong), table)
    k, v, k_cache, v_cache, step, _ = random_case("kv_write", torch.float32, 0)
    before = k_cache.clone()
    slots = step.paged(0).slots.index_fill(0, torch.tensor([3]), number)
    with pytest.raises(IndexError, match="slot not below 256"):
        ROWS.kv_write(k, v, k_cache, v_cache, replace(step, groups=(Paged(step.paged(0).page_table, slots),)))
    assert torch.equal(k_cache, before)


@BUILT
def test_caches_in_any_order_of_memory_are_written():
    k, v, k_cache, v_cache, step, _ = random_case("kv_write", torch.bfloat16, 0, strided=True)
    heads_first = [cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (k_cache, v_cache)]
    ROWS.kv_write(k, v, k_cache, v_cache, step)
    ROWS.kv_write(k, v, *heads_first, step)
    assert torch.equal(heads_first[0], k_cache)
    assert torch.equal(heads_first[1], v_cache)


@BUILT
@pytest.mark.parametrize("bias", [True, False], ids=["norms", "no norms"])
def test_a_block_prepares_heads_as_the_single_ops_do(bias):
    args = random_case("mha", torch.float32, 0, bias=bias, head_dim=32)
    x, weight, qkv_bias, q_norm, k_norm, eps, table, k_cache, v_cache, step = args[:10]
    slots = step.paged(0).slots
    qkv = plain(x, weight, qkv_bias).view(-1, 8, 32)
    q, k, v = (part.clone() for part in qkv.split((4, 2, 2), dim=1))
    if bias:
        q, k = ROWS.qk_norm_rope(q, k, q_norm, k_norm, eps, step, table)
    else:
        q, k = ROWS.rope(q, k, step, table)
    caches = [cache.clone() for cache in (k_cache, v_cache)]
    ROWS.kv_write(k, v, *caches, step)
    norms = rows.Norms((q_norm, k_norm, None), eps) if bias else rows.NO_NORMS
    turn = rows.Turn(step.positions, table)
    assert ROWS.can_prepare(qkv, norms, turn, (k_cache, v_cache), slots)
    assert torch.equal(ROWS.prepare(qkv, 4, norms, turn, (k_cache, v_cache), slots), q)
    for got, want in zip((k_cache, v_cache), caches, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", list(KERNELS))
def test_without_a_library_torch_does_the_work(op):
    args = random_case(op, torch.float32, 0)
    assert check_kernel(CATALOGUE[op], _natives(rows.Rows(None))[op], args, torch.float32).passed


def test_caches_of_another_dtype_are_left_to_torch():
    k, v, k_cache, v_cache, step, _ = random_case("kv_write", torch.float32, 0)
    caches = ROWS.kv_write(k, v, k_cache.bfloat16(), v_cache.bfloat16(), step)
    assert torch.equal(caches[0].flatten(0, 1)[step.paged(0).slots], k.bfloat16())


@pytest.mark.parametrize("library", [None, LIBRARY], ids=["no library", "library"])
def test_a_block_gives_the_same_with_and_without_the_library(library):
    found = None if isinstance(library, native.Absent) else library
    kernel = Mha(plain, NativeAttention(found, PagedAttention()), rows.Rows(found))
    args = random_case("mha", torch.float32, 1)
    registered = Kernel("mha", 1, (torch.float32,), kernel, "test", "mha", prepare=kernel.prepare)
    assert check_kernel(CATALOGUE["mha"], registered, args, torch.float32, facts=call_facts("mha", args)).passed


def test_torchs_own_kernels_stay_behind_the_native_ones():
    args = random_case("rope", torch.float32, 0, strided=True)
    for got, want in zip(ROWS.rope(*args), rope.rope(*args), strict=True):
        torch.testing.assert_close(got, want)
    logits = torch.randn(4, 99, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ROWS.argmax(logits), sampling.argmax(logits))
