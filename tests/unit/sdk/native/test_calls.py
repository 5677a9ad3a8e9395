"""What a native kernel is handed: tensors, strides, scalars, needs, and errors on the way back."""

import threading
from dataclasses import replace

import pytest
import torch

from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import BackendBroken
from anychip_sdk.native import abi
from anychip_sdk.native.calls import StepBlock, tensor_struct
from anychip_sdk.native.loader import load_native_backend
from anychip_sdk.native.shapes import result_rules
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import OpKey, with_prepared
from anychip_sdk.step import Slots, Step
from anychip_sdk.testing.cases import random_case, random_step

TENSORS, SCALARS, NDIM, STRIDE, HAS_DEVICE, ARGS_SIZE = range(6)


def kernel(backend, op="silu"):
    return backend.ops.kernels(op)[0].function


def test_a_kernel_is_told_its_arguments(faulty):
    backend = load_native_backend(faulty(), trial=False)
    told = kernel(backend)(torch.zeros(2, 3, 8))[0, 0]
    assert told[TENSORS] == 2
    assert told[SCALARS] == 0
    assert told[NDIM] == 3
    assert told[STRIDE] == 24
    assert told[HAS_DEVICE] == 0
    assert told[ARGS_SIZE] == abi.sized(abi.ArgsC).struct_size


def test_a_kernel_gets_the_device_that_is_open(faulty):
    backend = load_native_backend(faulty(), trial=False)
    run, x = kernel(backend), torch.zeros(1, 8)
    device = backend.open(backend.find_device(None), DeviceConfig())
    assert run(x)[0, HAS_DEVICE] == 1
    device.close()
    assert run(x)[0, HAS_DEVICE] == 0


@pytest.mark.parametrize(("fault", "stride"), [("", 8), ("strided rows", 16)])
def test_strided_inputs_are_copied_unless_the_kernel_takes_them(faulty, fault, stride):
    run = kernel(load_native_backend(faulty(fault), trial=False))
    assert run(torch.zeros(4, 16)[:, :8])[0, STRIDE] == stride
    assert run(torch.zeros(8, 4).T)[0, STRIDE] == 8  # a strided last dimension is copied in any case


def test_an_error_of_a_kernel_is_raised_with_its_reason(faulty):
    with pytest.raises(BackendBroken, match=r"op silu \(tell\): the grid is too large"):
        kernel(load_native_backend(faulty("op fails"), trial=False))(torch.zeros(1, 8))
    with pytest.raises(ValueError, match=r"op silu \(tell\): dim is odd"):
        kernel(load_native_backend(faulty("op refuses"), trial=False))(torch.zeros(1, 8))


FITTING = {"head_dim": 64, "hidden": 4096, "rows": 8, "page_size": 16, "kv_dtype": "float32"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"head_dim": 96}, "head_dim is 96, it needs one of 64, 128"),
        ({"hidden": 4097}, "hidden is 4097, it needs at most 4096"),
        ({"rows": 7}, "rows is 7, it needs at least 8"),
        ({"page_size": 12}, "page_size is 12, it needs a multiple of 8"),
        ({"kv_dtype": "float16"}, "kv_dtype is float16, it needs one of float32"),
    ],
)
def test_needs_of_a_kernel_decide_with_their_reason(faulty, change, reason):
    ops = load_native_backend(faulty(), trial=False).ops
    found = ops.resolve(OpKey("rms_norm", 1, torch.float32), {**FITTING, **change})
    assert found.provider == ("faulty" if reason is None else "reference")
    assert reason is None or found.rejected[0].reason == reason


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_the_shapes_of_results_follow_from_the_schema(name):
    op = CATALOGUE[name]
    args = random_case(name, torch.float32, 0)
    wanted = op.reference(*args)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for rule, want in zip(result_rules(op), wanted, strict=True):
        if rule.same_as is not None:
            assert args[rule.same_as] is want
        else:
            given = [StepBlock(value) if isinstance(value, Step) else value for value in args]
            assert rule.shape(given) == tuple(want.shape)
            assert (rule.dtype or args[rule.dtype_of].dtype) == want.dtype


def test_a_step_holds_its_rows_and_every_group_s_pages_or_slots():
    step = random_step(torch.Generator().manual_seed(0), 4, 64, decode=[9, 3], prefill=[(5, 7)], groups=2)
    slots = torch.tensor([4, 0, 2])
    made = StepBlock(replace(step, groups=(*step.groups, Slots(slots))))
    found = abi.StepC.from_address(made.address)
    assert (found.rows, found.tokens, found.logits, found.page_size, found.decode_rows) == (3, 7, 3, 4, 2)
    assert list(found.query_lens_host[:3]) == [1, 1, 5]
    assert list(found.context_lens_host[:3]) == [9, 3, 7]
    assert found.positions == step.positions.data_ptr()
    assert found.group_count == 3
    for index, entry in enumerate(step.groups):
        group = found.groups[index]
        assert (group.kind, group.pages_max) == (abi.STATE_PAGED, entry.page_table.shape[1])
        assert (group.page_table, group.slots) == (entry.page_table.data_ptr(), entry.slots.data_ptr())
    last = found.groups[2]
    assert (last.kind, last.pages_max, last.page_table, last.slots) == (abi.STATE_SLOT, 0, None, slots.data_ptr())


def test_a_kernel_is_told_of_every_group_of_a_step(faulty):
    step = random_step(torch.Generator().manual_seed(1), 4, 64, decode=[9, 3], prefill=[(5, 7)], groups=2)
    step = replace(step, groups=(*step.groups, Slots(torch.tensor([4, 0, 2]))))
    first, second = step.groups[:2]
    assert not torch.equal(first.page_table, second.page_table)
    tell = load_native_backend(faulty("steps"), trial=False).ops.kernels("select_rows")[0]
    told = tell.function(*with_prepared(tell, (torch.zeros(7, 16), step), {})).flatten()[:13].tolist()
    paged = [[abi.STATE_PAGED, *entry_facts(entry)] for entry in (first, second)]
    assert told == [3, *paged[0], *paged[1], abi.STATE_SLOT, 0, -1, 2]


def entry_facts(entry):
    return entry.page_table.shape[1], entry.page_table[0, 0].item(), entry.slots[-1].item()


@pytest.mark.parametrize("group", [0, 1])
def test_a_native_kernel_reads_and_writes_the_pages_of_its_group(example, group):
    generator = torch.Generator().manual_seed(2)
    step = random_step(generator, 4, 64, decode=[9, 3], prefill=[(5, 7)], groups=2)
    k, v, q = (torch.randn(7, heads, 8, generator=generator) for heads in (2, 2, 4))
    caches = [torch.randn(64, 4, 2, 8, generator=generator) for _ in range(2)]
    mine, wanted = [cache.clone() for cache in caches], [cache.clone() for cache in caches]
    write, attend = (example.ops.kernels(name)[0] for name in ("kv_write", "paged_attention"))
    write.function(*with_prepared(write, (k, v, *mine, step, group), {}))
    CATALOGUE["kv_write"].reference(k, v, *wanted, step, group)
    assert all(torch.equal(got, want) for got, want in zip(mine, wanted, strict=True))
    got = attend.function(*with_prepared(attend, (q, *mine, step, 0.3, None, group), {}))
    torch.testing.assert_close(got, CATALOGUE["paged_attention"].reference(q, *wanted, step, 0.3, None, group))
    other = CATALOGUE["paged_attention"].reference(q, *wanted, step, 0.3, None, 1 - group)
    assert not torch.allclose(got, other, atol=1e-2)


def test_a_step_s_own_embeddings_are_handed_on_by_the_host(example):
    step = random_step(torch.Generator().manual_seed(3), 4, 64, decode=[9, 3], prefill=[])
    weight = torch.randn(32, 8, generator=torch.Generator().manual_seed(4)).bfloat16()
    brought = replace(step, token_ids=step.token_ids % 32, embeddings=torch.full((2, 8), 0.3))
    embed = example.ops.kernels("embedding")[0]
    for one in (brought, replace(brought, embeddings=None)):
        got = embed.function(*with_prepared(embed, (one, weight), {}))
        want = CATALOGUE["embedding"].reference(one, weight)
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_a_tensor_that_c_cannot_be_told_of_is_refused():
    with pytest.raises(ValueError, match="with 7 dimensions can't be handed to a native op"):
        tensor_struct(torch.zeros(1, 1, 1, 1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"a tensor of torch\.complex64"):
        tensor_struct(torch.zeros(1, dtype=torch.complex64))


def test_threads_share_a_kernel_and_not_its_arguments(example):
    run = kernel(example, "rms_norm")
    weight = torch.ones(64)
    xs = [torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    expected = [run(x, weight, 1e-6) for x in xs]
    wrong = []

    def work(index):
        wrong.extend(1 for _ in range(200) if not torch.equal(run(xs[index], weight, 1e-6), expected[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
