"""Every tensor is read once, in slices that add up to the whole, within the memory promised. Knows no graph."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anychip.models.source import Source, same_name
from anychip.weights import load as load_module
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.load import Parameter, Shard, check_complete, load, total_bytes
from anychip_sdk.errors import CheckpointInvalid, MemoryInsufficient
from anychip_sdk.testing import ReferenceDevice
from support.tiny_models import make_tiny, write_gguf

Q, K, V = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
MIB = 2**20


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", shards=2)


@pytest.fixture
def checkpoint(directory):
    with open_checkpoint(directory) as opened:
        yield opened


def one_by_one(checkpoint):
    return [Parameter(name, info.shape, same_name(name, info.shape)) for name, info in checkpoint.tensors.items()]


def sources(*names):
    return tuple(Source(name, (64 if name == Q else 32, 64)) for name in names)


def load_quietly(parameter, checkpoint, device=None, dtype=torch.float32, progress=lambda *_: None):
    return load(parameter, checkpoint, device or ReferenceDevice(), dtype, progress, Shard())


def test_a_parameter_joins_its_tensors_in_order(checkpoint):
    joined = load_quietly(Parameter("qkv", (128, 64), sources(Q, K, V)), checkpoint)
    assert torch.equal(joined, torch.cat([checkpoint.read(name) for name in (Q, K, V)]))


@pytest.mark.parametrize("kind", ["safetensors", "F32", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("slice_bytes", [1, 1000, 4096, 64 << 20])
def test_slices_equal_the_whole(directory, tmp_path, monkeypatch, kind, slice_bytes):
    path = directory if kind == "safetensors" else write_gguf(directory, tmp_path / "m.gguf", kind)
    with open_checkpoint(path) as checkpoint:
        parameters = [Parameter("qkv", (128, 64), sources(Q, K, V)), *one_by_one(checkpoint)]
        whole = [torch.cat([checkpoint.read(source.tensor) for source in one.sources]) for one in parameters]
        monkeypatch.setattr(load_module, "SLICE_BYTES", slice_bytes)
        for parameter, expected in zip(parameters, whole, strict=True):
            assert torch.equal(load_quietly(parameter, checkpoint), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_are_rounded_once_to_the_dtype(checkpoint, dtype):
    found = load_quietly(Parameter(Q, (64, 64), sources(Q)), checkpoint, dtype=dtype)
    assert found.dtype == dtype
    assert torch.equal(found, checkpoint.read(Q).to(dtype))


def test_no_slice_is_larger_than_promised(checkpoint, monkeypatch):
    monkeypatch.setattr(load_module, "SLICE_BYTES", 2048)
    seen = []
    read = checkpoint.read

    def watched(name, rows):
        piece = read(name, rows)
        seen.append((name, rows, piece.nbytes))
        return piece

    monkeypatch.setattr(checkpoint, "read", watched)
    for parameter in one_by_one(checkpoint):
        load_quietly(parameter, checkpoint)
    assert max(nbytes for _, _, nbytes in seen) <= 2048
    for name, info in checkpoint.tensors.items():
        rows = sorted((piece.start, piece.stop) for one, piece, _ in seen if one == name)
        assert rows[0][0] == 0
        assert rows[-1][1] == info.shape[0]
        assert all(before[1] == after[0] for before, after in itertools.pairwise(rows))


def test_progress_rises_to_the_whole(checkpoint, monkeypatch):
    monkeypatch.setattr(load_module, "SLICE_BYTES", 1024)
    told = []
    load_quietly(Parameter("qkv", (128, 64), sources(Q, K, V)), checkpoint, progress=lambda *one: told.append(one))
    done = [count for _, count, _ in told]
    assert done == sorted(done)
    assert done[-1] == 128 * 64 * 4
    assert {total for _, _, total in told} == {128 * 64 * 4}
    assert list(dict.fromkeys(what for what, _, _ in told)) == [Q, K, V]


def test_everything_read_once_is_complete(checkpoint):
    check_complete(one_by_one(checkpoint), checkpoint)


def test_what_is_missing_left_over_or_read_twice_is_told_at_once(checkpoint):
    parameters = [one for one in one_by_one(checkpoint) if one.name != K]
    parameters += [Parameter("twice", (64, 64), sources(Q)), Parameter("absent", (1,), same_name("model.absent", (1,)))]
    with pytest.raises(CheckpointInvalid) as failed:
        check_complete(parameters, checkpoint)
    assert failed.value.message.splitlines()[1:] == [
        "  tensor model.absent is missing",
        f"  tensor {K} is not used by the model",
        f"  tensor {Q} is read more than once",
    ]


def test_a_device_without_room_is_an_error_of_memory(checkpoint):
    with pytest.raises(MemoryInsufficient, match="bytes wanted"):
        load_quietly(Parameter(Q, (64, 64), sources(Q)), checkpoint, ReferenceDevice(capacity_bytes=1000))


def test_tensor_parallel_loading_is_refused_until_it_exists(checkpoint):
    with pytest.raises(CheckpointInvalid, match="rank 1 of 2"):
        load(
            Parameter(Q, (64, 64), sources(Q)),
            checkpoint,
            ReferenceDevice(),
            torch.float32,
            lambda *_: None,
            Shard(1, 2),
        )


def test_total_bytes_counts_every_parameter_once():
    assert total_bytes({"a": Parameter("a", (2, 3), ()), "b": Parameter("b", (4,), ())}, torch.bfloat16) == 20


PEAK = """
import json, re, sys
sys.path.insert(0, sys.argv[1])
from anychip.engine.loader import load_model
from anychip.plan.make import prepare
from support.engines import make_recipe, quiet

def status(name):
    return int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

prepared = prepare(make_recipe(sys.argv[2], model={"dtype": "bfloat16"}, memory={"kv_tokens": 256}))
before = status("VmRSS")
model = load_model(prepared, quiet)
print(json.dumps({
    "peak": status("VmHWM"), "before": before,
    "weights": sum(one.elements for one in model.plan.weights.values()) * 2,
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_peak_memory_stays_below_the_weights_and_a_gibibyte(tmp_path):
    """A checkpoint of 600 MB in one process: what it holds at most besides the weights, its own code included."""
    directory = make_tiny(
        tmp_path / "large", "llama", vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=5,
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, torch_dtype="bfloat16",
    )  # fmt: skip
    assert sum(file.stat().st_size for file in directory.glob("*.safetensors")) > 550 * 10**6
    tests = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", PEAK, tests, directory], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["peak"] < found["weights"] + 1024 * MIB, found
