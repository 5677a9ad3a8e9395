"""Integers are the nearest ones, a file's own arrive bit for bit, slices add up. Knows tiny models; knows no graph."""

import pytest
import torch

from anychip.models.source import Source, same_name
from anychip.weights import load as load_module
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.load import Parameter, Shard, check_complete, load_quantized
from anychip.weights.quantize import dequantized, quantize
from anychip.weights.schemes import Scheme, choose
from anychip_sdk.errors import CheckpointInvalid
from anychip_sdk.testing import ReferenceDevice
from support.tiny_models import make_tiny, write_gguf

Q, K, V = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv")
SCHEMES = [Scheme(8), Scheme(8, 32), Scheme(4, 32, has_minimum=True), Scheme(4, 64, has_minimum=True)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama", shards=2)


def sources(*names):
    return tuple(Source(name, (64 if name == Q else 32, 64)) for name in names)


def held(parameter, checkpoint):
    return load_quantized(parameter, checkpoint, ReferenceDevice(), lambda *_: None, Shard())


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_no_value_is_further_off_than_half_a_step(scheme):
    values = torch.randn(9, 128, generator=torch.Generator().manual_seed(0))
    parts = quantize(values, scheme)
    groups = values.unflatten(-1, (-1, scheme.group or 128))
    width = groups.abs().amax(-1) / 127 if scheme.bits == 8 else (groups.amax(-1) - groups.amin(-1)) / 15
    off = (dequantized(parts, scheme) - values).abs().unflatten(-1, (-1, scheme.group or 128)).amax(-1)
    # 4-bit scales and minimums are rounded to float16
    assert (off <= width * 0.5 * (1 + 1e-3) + (0 if scheme.bits == 8 else 3e-3)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_the_shapes_and_dtypes_are_the_schemes(scheme):
    parts = quantize(torch.randn(6, 128, generator=torch.Generator().manual_seed(1)), scheme)
    assert {name: (tuple(one.shape), one.dtype) for name, one in parts.items()} == {
        part.name: (part.shape, part.dtype) for part in scheme.parts(6, 128)
    }


def test_rows_of_zeros_stay_zeros():
    for scheme in SCHEMES:
        assert not dequantized(quantize(torch.zeros(2, 128), scheme), scheme).any()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("slice_bytes", [1, 4096, 64 << 20])
def test_a_files_own_integers_stand_for_the_numbers_that_they_decode_to(
    directory, tmp_path, monkeypatch, kind, slice_bytes
):
    monkeypatch.setattr(load_module, "SLICE_BYTES", slice_bytes)
    with open_checkpoint(write_gguf(directory, tmp_path / "m.gguf", kind)) as checkpoint:
        scheme = choose("auto", {kind}, is_head=False)
        found = held(Parameter("qkv", (128, 64), sources(Q, K, V), scheme), checkpoint)
        expected = torch.cat([checkpoint.read(name) for name in (Q, K, V)])
    assert scheme.is_stored
    assert found.error == 0.0
    assert torch.equal(dequantized(found.parts, scheme), expected)


def test_both_four_bit_formats_join_without_a_loss(directory, tmp_path):
    scheme = choose("auto", {"Q4_0", "Q4_1"}, is_head=False)
    with open_checkpoint(write_gguf(directory, tmp_path / "m.gguf", "Q4_0")) as checkpoint:
        found = held(Parameter("q", (64, 64), sources(Q), scheme), checkpoint)
        expected = checkpoint.read(Q)
    torch.testing.assert_close(dequantized(found.parts, scheme), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_slices_equal_the_whole_and_the_error_is_that_of_the_numbers(directory, monkeypatch, scheme):
    monkeypatch.setattr(load_module, "SLICE_BYTES", 1000)
    with open_checkpoint(directory) as checkpoint:
        found = held(Parameter("qkv", (128, 64), sources(Q, K, V), scheme), checkpoint)
        values = torch.cat([checkpoint.read(name).float() for name in (Q, K, V)])
    whole = quantize(values, scheme)
    assert all(torch.equal(found.parts[name], whole[name]) for name in whole)
    expected = (dequantized(whole, scheme) - values).norm() / values.norm()
    assert found.error == pytest.approx(float(expected), rel=1e-4)
    assert 1e-3 < found.error < 0.1


def test_a_tensor_may_be_read_plain_and_quantized_but_not_twice_of_a_kind(directory):
    with open_checkpoint(directory) as checkpoint:
        plain = [Parameter(name, info.shape, same_name(name, info.shape)) for name, info in checkpoint.tensors.items()]
        check_complete([*plain, Parameter("q.int8", (64, 64), sources(Q), Scheme(8))], checkpoint)
        twice = [Parameter(f"q{i}.int8", (64, 64), sources(Q), Scheme(8)) for i in range(2)]
        with pytest.raises(CheckpointInvalid, match="read more than once"):
            check_complete([*plain, *twice], checkpoint)


def test_numbers_beyond_float16_are_refused_for_four_bits(directory, monkeypatch):
    with open_checkpoint(directory) as checkpoint:
        values = checkpoint.read(Q).clone()
        values[0, 0] = 1e6
        monkeypatch.setattr(checkpoint, "read", lambda name, rows: values[rows])
        with pytest.raises(CheckpointInvalid, match="too large for int4"):
            held(Parameter("q", (64, 64), sources(Q), Scheme(4, 32, has_minimum=True)), checkpoint)


def test_a_file_of_plain_numbers_has_no_blocks(directory):
    with open_checkpoint(directory) as checkpoint, pytest.raises(ValueError, match="no format of blocks"):
        checkpoint.read_blocks(Q, slice(0, 1))
