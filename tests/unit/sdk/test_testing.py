"""The test kit itself: it repeats, it refuses, it finds planted errors. Knows no backend."""

import pytest
import torch

from anychip_sdk import CATALOGUE
from anychip_sdk.errors import DeviceAbsent, MemoryInsufficient
from anychip_sdk.testing import ReferenceDevice, check_kernel, random_case, random_step

F32 = torch.float32


def test_a_case_repeats_with_its_seed_and_differs_with_another():
    for name in CATALOGUE:
        first, again, other = (random_case(name, F32, seed) for seed in (1, 1, 2))
        tensors = [(a, b) for a, b in zip(first, again, strict=True) if isinstance(a, torch.Tensor)]
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in tensors)
        assert any(
            a.shape != b.shape or not torch.equal(a, b)
            for a, b in zip(first, other, strict=True)
            if isinstance(a, torch.Tensor)
        )


def test_unknown_ops_and_dimensions_are_refused():
    with pytest.raises(ValueError, match="unknown dimensions heds; known: tokens"):
        random_case("rope", F32, 0, heds=3)
    with pytest.raises(KeyError):
        random_case("roap", F32, 0)


def test_a_step_has_slots_where_the_page_table_says():
    step = random_step(torch.Generator().manual_seed(0), 3, 20, [7, 1], [(4, 4), (2, 9)], groups=2)
    assert (step.rows, step.decode_rows, step.tokens) == (4, 2, 8)
    assert step.query_start.tolist() == [0, 1, 2, 6, 8]
    assert step.positions.tolist() == [6, 0, 0, 1, 2, 3, 7, 8]
    assert step.logit_rows.tolist() == [0, 1, 5, 7]
    for entry in step.groups:
        assert entry.slots.unique().numel() == 8
        assert entry.slots[-1] == entry.page_table[3, 8 // 3].item() * 3 + 8 % 3
    assert not torch.equal(step.groups[0].page_table, step.groups[1].page_table)
    with pytest.raises(ValueError, match="pages are needed"):
        random_step(torch.Generator(), 1, 5, [6], [])


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("linear", lambda x, w, b: torch.nn.functional.linear(x, w, b) * 1.001),
        ("rms_norm", lambda x, w, eps: x / x.square().mean(-1, keepdim=True).add(10 * eps + 1e-4).sqrt() * w),
        ("silu_mul", lambda gate, up: torch.nn.functional.silu(gate.half()).float() * up),
        ("argmax", lambda logits: logits.argmin(-1)),
        ("add", lambda x, y: torch.where(torch.arange(x.numel()).view(x.shape) == 7, torch.nan, x + y)),
        ("kv_write", lambda k, v, k_cache, v_cache, step, group: (k_cache, v_cache)),
    ],
)
def test_a_planted_error_is_found(name, mutant):
    op = CATALOGUE[name]
    args = random_case(name, F32, 0)
    assert check_kernel(op, op.reference, args, F32).passed
    assert not check_kernel(op, mutant, args, F32).passed


def test_attention_that_reads_a_foreign_slot_is_found():
    op = CATALOGUE["paged_attention"]

    def reads_padding(q, k_cache, v_cache, step, *rest):
        return op.reference(q, k_cache, v_cache, step, *rest) + 0 * v_cache.mean()

    args = random_case("paged_attention", F32, 0)
    assert not check_kernel(op, reads_padding, args, F32).passed


def test_the_arguments_are_not_changed_and_keep_their_strides():
    seen = []

    def kernel(gate, up):
        seen.append(gate.stride())
        gate.zero_()
        return CATALOGUE["silu_mul"].reference(gate, up)

    args = random_case("silu_mul", F32, 0, strided=True)
    before = args[0].clone()
    check_kernel(CATALOGUE["silu_mul"], kernel, args, F32)
    assert torch.equal(args[0], before)
    assert seen == [args[0].stride()]


def test_a_wrong_shape_or_dtype_is_an_error():
    op = CATALOGUE["add"]
    args = random_case("add", F32, 0)
    with pytest.raises(AssertionError, match=r"out is torch.float64 .* expected torch.float32"):
        check_kernel(op, lambda x, y: (x + y).double(), args, F32)
    with pytest.raises(AssertionError, match="2 results, expected 1"):
        check_kernel(op, lambda x, y: (x + y, x), args, F32)


def test_the_reference_device_counts_bytes():
    device = ReferenceDevice(capacity_bytes=1000)
    buffer = device.alloc(600, alignment=256)
    assert buffer.data_ptr() % 256 == 0
    assert not buffer.any()
    assert device.memory().bytes_free == 400
    with pytest.raises(MemoryInsufficient, match="401 bytes wanted, 400 free"):
        device.alloc(401)
    device.free(buffer)
    assert (device.bytes_used, device.bytes_peak) == (0, 600)
    with pytest.raises(ValueError, match="is not allocated"):
        device.free(buffer)
    with pytest.raises(DeviceAbsent, match="present: reference:0"):
        device.resolve("reference:1")
