"""The example backend in C++: its ops are right, its device keeps its books."""

import gc
import subprocess
import sys

import pytest
import torch

from anychip_sdk.device import DeviceConfig
from anychip_sdk.errors import BackendBroken, DeviceAbsent, MemoryInsufficient
from anychip_sdk.native.calls import NativeWeight
from anychip_sdk.native.loader import load_native_backend
from anychip_sdk.ops import CATALOGUE
from anychip_sdk.registry import with_prepared
from anychip_sdk.testing.cases import chunk_step, random_case
from anychip_sdk.testing.check import check_kernel
from support.native_libraries import EXAMPLE

OPS = (
    "add",
    "add_rms_norm",
    "argmax",
    "embedding",
    "kv_write",
    "linear",
    "lm_head",
    "paged_attention",
    "qk_norm_rope",
    "rms_norm",
    "rope",
    "select_rows",
    "silu_mul",
)
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = (
    {},
    {"tokens": 1, "rows": 1, "hidden": 15, "out": 17, "inner": 33, "page_size": 1, "pages": 128, "kv_heads": 4},
    {"tokens": 17, "hidden": 129, "out": 31, "inner": 127, "heads": 6, "kv_heads": 1, "head_dim": 32, "rotary_dim": 16},
    {"tokens": 0, "rows": 0, "decode_rows": 0, "prefill_rows": 0},
    {"decode_rows": 0, "prefill_rows": 3, "page_size": 16, "window": 5},
    {"head_dim": 24, "soft_cap": 2, "sinks": 1},
)


def own(example, name):
    found = [kernel for kernel in example.ops.kernels(name) if kernel.provider == "example"]
    assert len(found) == 1
    return found[0]


def test_it_has_the_ops_that_it_claims(example):
    assert tuple(sorted(name for name in CATALOGUE if example.ops.kernels(name)[0].provider == "example")) == OPS
    text = (EXAMPLE / "conformance.yaml").read_text(encoding="utf-8")
    assert tuple(line.split(":")[0].strip() for line in text.splitlines() if line.endswith(": all")) == OPS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_an_op_is_as_exact_as_the_catalogue_asks(example, device, name, dtype):
    kernel = own(example, name)

    def prepared(argument, weight):
        return example.prepare_weight(argument, weight, name, device).value

    for seed, shape in enumerate(SHAPES):
        for strided in (False, True):
            case = random_case(name, dtype, seed, strided=strided, bias=seed % 2 == 0, **shape)
            found = check_kernel(CATALOGUE[name], kernel, case, dtype)
            assert found.passed, (shape, strided, found)
            if kernel.prepares_weight:
                found = check_kernel(CATALOGUE[name], kernel, case, dtype, prepare=prepared)
                assert found.passed, (shape, strided, found)


def test_a_row_is_the_same_alone_and_in_a_batch(example):
    run = own(example, "linear").function
    x, weight, _ = random_case("linear", torch.bfloat16, 3, tokens=9)
    together = run(x, weight, None)
    assert all(torch.equal(together[row : row + 1], run(x[row : row + 1], weight, None)) for row in range(9))


def test_a_matrix_is_prepared_and_a_bias_stays(example, device):
    weight = torch.randn(33, 8, generator=torch.Generator().manual_seed(0))
    made = example.prepare_weight("w", weight, "linear", device)
    assert isinstance(made.value, NativeWeight)
    assert (made.value.shape, made.nbytes, made.layout) == (weight.shape, 48 * 8 * 4, "native")
    bias = torch.zeros(33)
    assert example.prepare_weight("b", bias, "linear", device).value is bias


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0, 1e-40])
def test_special_numbers_are_rounded_as_torch_does(example, value):
    x = torch.full((1, 3), value, dtype=torch.bfloat16)
    got = own(example, "silu_mul").function(x, torch.ones_like(x))
    want = CATALOGUE["silu_mul"].reference(x, torch.ones_like(x))
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got[~got.isnan()], want[~want.isnan()])


def test_bfloat16_is_rounded_once(example):
    # halfway between two neighbours: to the even one
    x = torch.tensor([[1.0 + 2**-8]], dtype=torch.float32).repeat(1, 2)
    kernel = own(example, "kv_write")
    k = x.view(2, 1, 1)
    cache = torch.zeros(1, 2, 1, 1, dtype=torch.bfloat16)
    kernel.function(*with_prepared(kernel, (k, k, cache, cache.clone(), chunk_step([7, 8], 0, 2, [0], 2), 0), {}))
    assert torch.equal(cache.flatten(), x.flatten().to(torch.bfloat16))


def test_the_books_are_exact(device):
    before = device.memory()
    buffer = device.alloc(1 << 20, alignment=4096)
    assert buffer.data_ptr() % 4096 == 0
    assert not buffer.any()
    assert before.bytes_free - device.memory().bytes_free == 1 << 20
    device.free(buffer)
    assert device.memory() == before
    with pytest.raises(ValueError, match="is not allocated"):
        device.free(buffer)
    with pytest.raises(ValueError, match="is not allocated"):
        device.free(torch.zeros(3, dtype=torch.uint8))


def test_a_buffer_lives_as_long_as_its_last_view(device):
    before = device.memory().bytes_free
    view = device.alloc(4096)[100:200].view(torch.int32)
    gc.collect()
    assert before - device.memory().bytes_free == 4096
    view[:] = 7
    assert view.sum() == 7 * 25
    del view
    gc.collect()
    assert device.memory().bytes_free == before


def test_more_than_there_is_is_refused_with_both_numbers(device):
    total = device.memory().bytes_total
    with pytest.raises(MemoryInsufficient, match=rf"{2 * total} bytes wanted, \d+ free"):
        device.alloc(2 * total)


def test_nothing_is_a_buffer_too(device):
    before = device.memory()
    device.free(device.alloc(0))
    assert device.memory() == before


def test_closing_gives_everything_back_and_may_be_repeated(example):
    first, second = (example.open(example.find_device(None), DeviceConfig()) for _ in range(2))
    before = first.memory().bytes_free
    kept = second.alloc(1 << 16)
    second.close()
    second.close()
    assert first.memory().bytes_free == before
    del kept
    with pytest.raises(BackendBroken, match="example:0 is not open"):
        second.alloc(10)
    first.close()


def test_copies_are_the_same_with_and_without_a_stream(device):
    source = torch.arange(1000, dtype=torch.float32)
    target = device.alloc(4000).view(torch.float32)
    stream = device.create_stream()
    for given in (None, stream):
        target.zero_()
        device.copy(target, source, given)
        stream.synchronize()
        assert torch.equal(target, source)
    device.copy(target.view(20, 50), source.view(50, 20).T, stream)
    assert torch.equal(target.view(20, 50), source.view(50, 20).T)
    before = target.clone()
    device.copy(target[10:], target[:-10], stream)  # overlapping: as if through a third
    assert torch.equal(target[10:], before[:-10])
    whole = torch.zeros(1000, dtype=torch.int64)
    device.copy(whole, source)
    assert torch.equal(whole, source.long())
    device.destroy_stream(stream)
    device.destroy_stream(stream)
    with pytest.raises(ValueError, match="the stream was destroyed"):
        stream.record()


def test_events_are_done_in_order(device):
    stream, other = device.create_stream(), device.create_stream(-1)
    first = stream.record()
    other.wait(first)
    second = other.record()
    second.synchronize()
    assert first.query()
    assert second.query()
    assert second.elapsed_s(first) >= 0
    device.synchronize()


def test_a_library_without_events_waits_where_one_is_recorded(faulty):
    backend = load_native_backend(faulty("streams without events"), trial=False)
    device = backend.open(backend.find_device(None), DeviceConfig())
    stream = device.create_stream()
    event = stream.record()
    stream.wait(event)
    assert event.query()
    device.destroy_stream(stream)


def test_device_names_are_its_own_or_native(example, device):
    assert example.find_device("example:0") == example.find_device("native:0") == example.find_device(None)
    assert device.resolve("example:0") == torch.device("cpu")
    assert device.handle == device.vendor_handle
    with pytest.raises(DeviceAbsent, match="no device 'example:1'"):
        device.resolve("example:1")


def test_the_native_package_is_importable_without_torch():
    code = "import sys, anychip_sdk.native.trial; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
